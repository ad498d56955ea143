import type { MachineService } from '../../model/app/machine-config.ts'
import type { Db, Query, Tx } from '../db.ts'
import { lockMachine } from './machine.ts'
import { stopMachine, suspendMachine } from './machine-command.ts'

/** Stores the peak load that an edge worker saw at each machine since its last report. */
export async function putLoads(db: Query, worker: string, loads: Map<string, number>): Promise<void> {
  if (loads.size === 0) return
  await db.query({
    name: 'put-machine-loads',
    text: `insert into machine_load (machine_id, worker, load)
           select id, $1, load from unnest($2::text[], $3::int[]) given (id, load) where id in (select id from machine)
           on conflict (machine_id, worker) do update set load = excluded.load, at = now()`,
    values: [worker, [...loads.keys()], [...loads.values()]],
  })
}

export interface RunningMachine {
  id: string
  appId: string
  region: string
  services: MachineService[]
  load: number
  /** Whether it has run for the whole period over which the load is measured. */
  isSettled: boolean
}

/** Running machines of apps that use autostop. */
export async function listRunningMachines(db: Query, seconds: number): Promise<RunningMachine[]> {
  const { rows } = await db.query<RunningMachine>({
    name: 'list-running-machines',
    text: `select id, app_id as "appId", region, config -> 'services' as services,
             coalesce((select sum(load)::int from machine_load
               where machine_id = machine.id and at > now() - interval '1 second' * $1), 0) as load,
             state_since < now() - interval '1 second' * $1 as "isSettled"
           from machine
           where state = 'started' and not cordoned and jsonb_path_exists(config,
             '$.services[*].autostop ? (@ == true || @ == "stop" || @ == "suspend")')
           order by app_id, id`,
    values: [seconds],
  })
  return rows
}

/** Returns false when it is no longer running. */
export async function stopIdleMachine(tx: Tx, id: string, how: 'stop' | 'suspend'): Promise<boolean> {
  const machine = await lockMachine(tx, id)
  if (machine?.state !== 'started') return false
  if (how === 'suspend') await suspendMachine(tx, id, 'proxy')
  else await stopMachine(tx, id, { signal: null, timeoutMs: null }, 'proxy')
  return true
}

// The key of an advisory lock; no other lock may use the same number.
const autostopLock = 0x73746f70

/** Runs the body only if no other process runs it at the same time. */
export async function ifNotRunning(db: Db, body: (tx: Tx) => Promise<void>): Promise<void> {
  await db.transaction(async (tx) => {
    const { rows } = await tx.query('select pg_try_advisory_xact_lock($1) as held', [autostopLock])
    if (rows[0].held) await body(tx)
  })
}
