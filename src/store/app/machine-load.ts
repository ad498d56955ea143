import type { MachineService } from '../../model/app/machine-config.ts'
import type { Query, Tx } from '../db.ts'
import { lockMachine } from './machine.ts'
import { stopMachine, suspendMachine } from './machine-command.ts'

/** Stores the peak load that an edge worker saw at each machine since its last report. */
export async function putLoads(db: Query, worker: number, loads: Map<string, number>): Promise<void> {
  if (loads.size === 0) return
  await db.query({
    name: 'put-machine-loads',
    text: 'select put_machine_loads($1, $2, $3)',
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
    text: `select id, app_id as "appId", region, services,
             coalesce((select sum(load)::int from machine_load
               where machine_id = machine_route.id and at > now() - interval '1 second' * $1), 0) as load,
             state_since < now() - interval '1 second' * $1 as "isSettled"
           from machine_route
           where state = 'started' and not cordoned and jsonb_path_exists(services,
             '$[*].autostop ? (@ == true || @ == "stop" || @ == "suspend")')
           order by app_id, id`,
    values: [seconds],
  })
  return rows
}

/** Does nothing when the machine is not running, or its owner did not ask for this. */
export async function stopIdleMachine(tx: Tx, id: string, how: 'stop' | 'suspend'): Promise<void> {
  const machine = await lockMachine(tx, id)
  if (machine?.state !== 'started') return
  const services = (machine.config.services ?? []).filter(({ autostop }) => autostop && autostop !== 'off')
  if (services.length === 0) return
  if (how === 'suspend' && services.some(({ autostop }) => autostop === 'suspend')) {
    await suspendMachine(tx, id, 'proxy')
  } else await stopMachine(tx, id, { signal: null, timeoutMs: null }, 'proxy')
}
