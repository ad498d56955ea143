// What callers and steps change about machines. States are written by `transition` alone.
import type { EventSource, ImageRef, MachineDetails } from '../../model/app/machine.ts'
import { machineStates } from '../../model/app/machine.ts'
import type { MachineConfig } from '../../model/app/machine-config.ts'
import type { KeptConfig } from '../../model/app/machine-config-check.ts'
import { removeInsideToken } from '../account/token.ts'
import type { Db, Query, Tx } from '../db.ts'
import { transition } from '../transition.ts'
import { enqueue } from '../work.ts'
import { machineDetails } from './machine.ts'
import { insertMachineEvent } from './machine-event.ts'

export interface NewMachine {
  id: string
  name: string
  region: string
  instanceId: string
  config: KeptConfig
  cordoned: boolean
  wanted: boolean
  secrets: Buffer | null
  secretsVersion: number
}

export type InsertedMachine =
  | { is: 'made' }
  /** Its app is being deleted. */
  | { is: 'without app' }
  | { is: 'without slot' }
  | { is: 'name taken'; by: string }

// Any number that nothing else of ours locks on.
const slotLock = 0x736c6f74

/** Two that take the last slots from both ends at once meet; the one that comes second looks again. */
const slotTries = 5

/** For `insertMachine`, which runs again with all around it when a sandbox took the slot first. */
export async function transactionWithSlot<R>(db: Db, body: (tx: Tx) => Promise<R>): Promise<R> {
  for (let tries = 1; ; tries++) {
    try {
      return await db.transaction(body)
    } catch (error) {
      const { code, table } = error as { code?: string; table?: string }
      if (code !== '23505' || table !== 'box_slot' || tries === slotTries) throw error
    }
  }
}

/** Takes the highest free slot: sandboxes take the lowest. Those who take one here wait for each other. */
export async function insertMachine(
  tx: Tx,
  app: { id: string; orgId: string; network: string },
  input: NewMachine,
): Promise<InsertedMachine> {
  const { rowCount } = await tx.query({
    name: 'hold-app',
    text: `select 1 from app where id = $1 and state = 'active' for share`,
    values: [app.id],
  })
  if (rowCount !== 1) return { is: 'without app' }
  await tx.query('select pg_advisory_xact_lock($1)', [slotLock])
  const taken = await findByName(tx, app.id, input.name)
  if (taken !== undefined) return { is: 'name taken', by: taken }
  const network = await ensureNetwork(tx, app)
  const { rowCount: inserted } = await tx.query({
    name: 'insert-machine',
    text: `with free as (
             select max(n) as slot from generate_series(1, 1023) n
             where not exists (select 1 from box_slot where box_slot.slot = n)),
           made as (
             insert into machine (id, app_id, name, state, region, instance_id, config, slot, network_number, wanted,
               cordoned, secrets, secrets_version)
             select $1, $2, $3, 'created', $4, $5, $6, free.slot, $7, $8, $9, $10, $11 from free
             where free.slot is not null returning id)
           insert into machine_version (machine_id, version, config) select id, $5, $6 from made`,
    values: [
      input.id,
      app.id,
      input.name,
      input.region,
      input.instanceId,
      input.config,
      network,
      input.wanted,
      input.cordoned,
      input.secrets,
      input.secretsVersion,
    ],
  })
  if (inserted !== 1) return { is: 'without slot' }
  await insertMachineEvent(tx, input.id, { type: 'launch', status: 'created', source: 'user' })
  return { is: 'made' }
}

async function findByName(tx: Tx, appId: string, name: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ id: string }>({
    name: 'find-machine-by-name',
    text: `select id from machine where app_id = $1 and name = $2 and state <> 'destroyed'`,
    values: [appId, name],
  })
  return rows[0]?.id
}

export async function ensureNetwork(tx: Tx, { orgId, network }: { orgId: string; network: string }): Promise<number> {
  const { rows } = await tx.query<{ number: number }>({
    name: 'ensure-network',
    text: `with made as (
             insert into network (org_id, name) select $1, $2
             where not exists (select 1 from network where org_id = $1 and name = $2)
             on conflict do nothing returning number)
           select number from made union all select number from network where org_id = $1 and name = $2`,
    values: [orgId, network],
  })
  // Made by another transaction since this statement began.
  return rows[0]?.number ?? ensureNetwork(tx, { orgId, network })
}

/** The row as it is now; nobody else changes it until the transaction ends. */
export async function lockMachine(tx: Tx, id: string): Promise<MachineDetails | undefined> {
  const { rows } = await tx.query<MachineDetails>({
    name: 'lock-machine-details',
    text: `select ${machineDetails} from machine where id = $1 for update`,
    values: [id],
  })
  return rows[0]
}

export async function insertVersion(
  tx: Tx,
  id: string,
  version: Pick<NewMachine, 'instanceId' | 'config' | 'wanted' | 'secrets' | 'secretsVersion'> & {
    keepsImage: boolean
  },
): Promise<void> {
  await tx.query({
    name: 'insert-machine-version',
    text: `with changed as (
             update machine set instance_id = $2, config = $3, wanted = $4, secrets = $5, secrets_version = $6,
               image = case when $7 then image end, exits_seen = 0, restart_count = 0, failure = null, progress_at = null,
               stop_signal = null, stop_timeout_ms = null,
               next_start_at = case when config->>'schedule' = $8 and next_start_at is not null
                 then next_start_at else now() + $9::interval end
             where id = $1)
           insert into machine_version (machine_id, version, config) values ($1, $2, $3)`,
    values: [
      id,
      version.instanceId,
      version.config,
      version.wanted,
      version.secrets,
      version.secretsVersion,
      version.keepsImage,
      version.config.schedule ?? null,
      scheduleInterval(version.config),
    ],
  })
}

const scheduleIntervals: Record<string, string> = {
  hourly: '1 hour',
  daily: '1 day',
  weekly: '1 week',
  monthly: '1 month',
}

/** As PostgreSQL reads it. */
function scheduleInterval({ schedule }: Pick<MachineConfig, 'schedule'>): string | null {
  return schedule ? scheduleIntervals[schedule]! : null
}

/** Starts it, if its state allows. Whoever is not a caller says so. */
export async function launchMachine(
  tx: Tx,
  machine: Pick<MachineDetails, 'id' | 'config'>,
  command: 'launch' | 'start',
  source: EventSource = 'user',
): Promise<void> {
  await tx.query({
    name: 'want-machine',
    text: `update machine set wanted = true, restart_count = 0, failure = null, progress_at = null,
             next_start_at = now() + $2::interval where id = $1`,
    values: [machine.id, scheduleInterval(machine.config)],
  })
  await transition(tx, 'machine', machineStates, machine.id, command, '', command === 'launch' ? 'flyd' : source)
}

export async function stopMachine(
  tx: Tx,
  id: string,
  how: { signal: string | null; timeoutMs: number | null },
  source: EventSource = 'user',
): Promise<void> {
  await tx.query({
    name: 'unwant-machine',
    text: `update machine set wanted = false, stop_signal = $2, stop_timeout_ms = $3, progress_at = null where id = $1`,
    values: [id, how.signal, how.timeoutMs],
  })
  await transition(tx, 'machine', machineStates, id, 'stop', '', source)
}

export async function restartMachine(
  tx: Tx,
  id: string,
  how: { signal: string | null; timeoutMs: number | null },
): Promise<void> {
  await tx.query({
    name: 'restart-machine',
    text: `update machine set wanted = true, stop_signal = $2, stop_timeout_ms = $3, progress_at = null where id = $1`,
    values: [id, how.signal, how.timeoutMs],
  })
  await transition(tx, 'machine', machineStates, id, 'restart')
}

export async function suspendMachine(tx: Tx, id: string, source: EventSource = 'user'): Promise<void> {
  await tx.query(
    `update machine set wanted = false, stop_signal = null, stop_timeout_ms = null, progress_at = null where id = $1`,
    [id],
  )
  await transition(tx, 'machine', machineStates, id, 'suspend', '', source)
}

export async function destroyMachine(tx: Tx, id: string, source: EventSource = 'user'): Promise<void> {
  await tx.query('update machine set wanted = false where id = $1', [id])
  await transition(tx, 'machine', machineStates, id, 'delete', '', source)
}

export async function setCordoned(tx: Tx, id: string, cordoned: boolean): Promise<void> {
  await tx.query('update machine set cordoned = $2 where id = $1', [id, cordoned])
  await insertMachineEvent(tx, id, {
    type: cordoned ? 'cordon' : 'uncordon',
    status: cordoned ? 'cordoned' : 'uncordoned',
    source: 'user',
  })
}

export async function setConfig(tx: Tx, id: string, config: KeptConfig): Promise<void> {
  await tx.query('update machine set config = $2 where id = $1', [id, config])
}

/** Network policies that select by metadata may select it now, or no longer. */
export async function setMetadata(tx: Tx, id: string, metadata: Record<string, string>): Promise<void> {
  const { rows } = await tx.query<{ isToHold: boolean }>({
    name: 'set-machine-metadata',
    text: `update machine set config = jsonb_set(config, '{metadata}', $2),
             policies_version = case policies_version when 0 then 0 else -1 end
           where id = $1 returning state = 'started' and policies_version <> 0 as "isToHold"`,
    values: [id, metadata],
  })
  if (rows[0]?.isToHold) await enqueue(tx, 'machine', id)
}

export async function setLease(
  tx: Tx,
  id: string,
  lease: { nonce: string; owner: string; description: string; seconds: number },
): Promise<void> {
  await tx.query({
    name: 'set-machine-lease',
    text: `update machine set lease_nonce = $2, lease_owner = $3, lease_description = $4,
             lease_until = now() + interval '1 second' * $5 where id = $1`,
    values: [id, lease.nonce, lease.owner, lease.description, lease.seconds],
  })
}

export async function clearLease(tx: Tx, id: string): Promise<void> {
  await tx.query('update machine set lease_nonce = null, lease_until = null where id = $1', [id])
}

/** What the reference of its image led to. Belongs to the version that was asked about. */
export async function setImage(db: Query, id: string, instanceId: string, image: ImageRef): Promise<void> {
  await db.query({
    name: 'set-machine-image',
    // To lose it in a crash is harmless, so that nobody waits for the disk: the next look finds the same.
    text: `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true))
           update machine set image = $3 from asynchronous where id = $1 and instance_id = $2`,
    values: [id, instanceId, image],
  })
}

/** It moves, which keeps it from counting as stuck; the note says how. */
export async function noteProgress(db: Query, id: string, note: string): Promise<void> {
  await db.query({
    name: 'note-machine-progress',
    text: `with noted as (update machine set progress_at = now() where id = $1)
           update work set note = $2 where kind = 'machine' and resource_id = $1`,
    values: [id, note],
  })
}

/** The ends of its program up to this one have become events. */
export async function noteExits(tx: Tx, id: string, last: number, restarts: number): Promise<void> {
  await tx.query({
    name: 'note-machine-exits',
    text: `update machine set exits_seen = $2, restart_count = restart_count + $3 where id = $1`,
    values: [id, last, restarts],
  })
}

/** Its checks have not been made since this start. */
export async function noteUp(tx: Tx, id: string, checks: string[]): Promise<void> {
  await tx.query('update machine set launched = true, failure = null, progress_at = null where id = $1', [id])
  await resetChecks(tx, id, checks)
}

/** It is not to run any more, because it was done. */
export async function noteDown(tx: Tx, id: string): Promise<void> {
  await tx.query('update machine set wanted = false where id = $1', [id])
  await resetChecks(tx, id, [])
}

async function resetChecks(tx: Tx, id: string, names: string[]): Promise<void> {
  await tx.query('delete from machine_check where machine_id = $1', [id])
  if (names.length === 0) return
  await tx.query(
    `insert into machine_check (machine_id, name, status, output) select $1, unnest($2::text[]), 'warning', 'not checked yet'`,
    [id, names],
  )
}

/** Its uids and addresses may be given to another; what ran with them is gone. */
export async function releaseMachine(tx: Tx, id: string): Promise<void> {
  await tx.query('delete from machine_check where machine_id = $1', [id])
  await removeInsideToken(tx, id)
  await tx.query(
    `update machine set slot = null, secrets = null, destroyed_at = now(), lease_nonce = null, lease_until = null,
       next_start_at = null where id = $1`,
    [id],
  )
}

const leaving = `('destroying', 'launch_failed', 'destroyed')`

/** Those of an app that is being deleted which nobody has told to go. */
export async function machinesToRemove(db: Query, appId: string, limit: number): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select id from machine where app_id = $1 and state not in ${leaving} order by id limit $2`,
    [appId, limit],
  )
  return rows.map((row) => row.id)
}

/** Whether anything of the machines of an app is left outside. */
export async function hasMachines(db: Query, appId: string): Promise<boolean> {
  const { rowCount } = await db.query(`select 1 from machine where app_id = $1 and state <> 'destroyed' limit 1`, [
    appId,
  ])
  return rowCount !== 0
}

/** Those whose time has come and that do not run. What runs over its time is started with the next. */
export async function startScheduled(tx: Tx): Promise<string[]> {
  const { rows } = await tx.query<{ id: string; config: MachineDetails['config']; state: string }>(
    `select id, config, state from machine where next_start_at <= now() order by next_start_at limit 100
     for update skip locked`,
  )
  for (const machine of rows) {
    if (['created', 'stopped', 'failed'].includes(machine.state)) await launchMachine(tx, machine, 'start', 'flyd')
    else {
      const interval = scheduleInterval(machine.config)
      await tx.query('update machine set next_start_at = now() + $2::interval where id = $1', [machine.id, interval])
    }
  }
  return rows.map((row) => row.id)
}

/** What was destroyed is shown for a while. */
export async function forgetDestroyed(db: Query, afterSeconds: number): Promise<number> {
  const { rowCount } = await db.query(
    `delete from machine where ctid = any(array(
       select ctid from machine where destroyed_at < now() - interval '1 second' * $1 limit 500))`,
    [afterSeconds],
  )
  return rowCount ?? 0
}

/** Counts only for the start that was looked at. */
export async function setCheck(
  db: Query,
  { id, instanceId }: Pick<MachineDetails, 'id' | 'instanceId'>,
  name: string,
  { status, output }: Pick<MachineDetails['checks'][number], 'status' | 'output'>,
): Promise<void> {
  await db.query({
    name: 'set-machine-check',
    text: `insert into machine_check (machine_id, name, status, output)
           select id, $3, $4, $5 from machine where id = $1 and instance_id = $2 and state = 'started'
           on conflict (machine_id, name) do update
             set status = excluded.status, output = excluded.output, updated_at = now()`,
    values: [id, instanceId, name, status, output.replaceAll('\0', '')],
  })
}
