// What the reconciler records about a machine while it carries out a command.
import type { ContainerState } from '../../model/app/container/config.ts'
import type { ExitEvent, Machine, MachineDetails } from '../../model/app/machine.ts'
import { removeInsideToken } from '../account/token.ts'
import type { Query, Tx } from '../db.ts'

/** Stores the resolved images, unless the machine has been updated since. */
export async function setImages(
  db: Query,
  { id, instanceId, image, containerImages }: Pick<Machine, 'id' | 'instanceId' | 'image' | 'containerImages'>,
): Promise<void> {
  await db.query({
    name: 'set-machine-image',
    // The commit does not wait for the disk: after a crash the reference is resolved again.
    text: `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true))
           update machine set image = $3, container_images = $4 from asynchronous where id = $1 and instance_id = $2`,
    values: [id, instanceId, image, containerImages],
  })
}

/** Restarts the deadline of the current state. The note is shown to the user. */
export async function recordProgress(db: Query, id: string, note: string): Promise<void> {
  await db.query({
    name: 'note-machine-progress',
    text: `with noted as (update machine set progress_at = now() where id = $1)
           update work set note = $2 where kind = 'machine' and resource_id = $1`,
    values: [id, note],
  })
}

export interface SeenExits {
  /** The number of the last one, which marks all exits up to it as recorded. */
  number: number
  restarts: number
  last: ExitEvent
  /** Milliseconds since 1970; undefined when the program is not started again. */
  nextRestartAt: number | undefined
}

export async function insertExits(tx: Tx, id: string, seen: SeenExits): Promise<void> {
  await tx.query({
    name: 'note-machine-exits',
    text: `update machine set exits_seen = $2, restart_count = restart_count + $3, last_exit = $4,
             next_restart_at = to_timestamp($5::float8 / 1000) where id = $1`,
    values: [id, seen.number, seen.restarts, seen.last, seen.nextRestartAt ?? null],
  })
}

/** Resets failures, exits, warnings and checks after a start. */
export async function recordStarted(tx: Tx, id: string, checks: string[]): Promise<void> {
  await tx.query(
    `update machine set launched = true, failure = null, progress_at = null, last_exit = null, next_restart_at = null,
       warnings = null, containers = null where id = $1`,
    [id],
  )
  await resetChecks(tx, id, checks)
}

/** The program exited and its restart policy does not start it again. */
export async function recordStopped(tx: Tx, id: string): Promise<void> {
  await tx.query(
    'update machine set wanted = false, next_restart_at = null, warnings = null, containers = null where id = $1',
    [id],
  )
  await resetChecks(tx, id, [])
}

export async function setWarnings(tx: Tx, id: string, warnings: string[]): Promise<void> {
  await tx.query('update machine set warnings = $2 where id = $1', [id, warnings])
}

export async function setContainers(tx: Tx, id: string, containers: ContainerState[]): Promise<void> {
  await tx.query('update machine set containers = $2 where id = $1', [id, JSON.stringify(containers)])
}

async function resetChecks(tx: Tx, id: string, names: string[]): Promise<void> {
  await tx.query('delete from machine_check where machine_id = $1', [id])
  if (names.length === 0) return
  await tx.query(
    `insert into machine_check (machine_id, name, status, output) select $1, unnest($2::text[]), 'warning', 'not checked yet'`,
    [id, names],
  )
}

/** Frees the slot, and with it uids and addresses. The box must be gone. */
export async function releaseMachine(tx: Tx, id: string): Promise<void> {
  await tx.query('delete from machine_check where machine_id = $1', [id])
  await removeInsideToken(tx, id)
  await tx.query(
    `update machine set slot = null, secrets = null, destroyed_at = now(), lease_nonce = null, lease_until = null,
       next_start_at = null where id = $1`,
    [id],
  )
}

const leavingStates = `('destroying', 'launch_failed', 'destroyed')`

/** Machines of a deleted app that still have to be destroyed. */
export async function listMachinesToDestroy(db: Query, appId: string, limit: number): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select id from machine where app_id = $1 and state not in ${leavingStates} order by id limit $2`,
    [appId, limit],
  )
  return rows.map((row) => row.id)
}

/** Whether any machine of the app may still have processes or files. */
export async function hasMachines(db: Query, appId: string): Promise<boolean> {
  const { rowCount } = await db.query(`select 1 from machine where app_id = $1 and state <> 'destroyed' limit 1`, [
    appId,
  ])
  return rowCount !== 0
}

/** Deletes rows of machines that were destroyed that long ago; until then the API still shows them. */
export async function deleteDestroyed(db: Query, afterSeconds: number): Promise<number> {
  const { rowCount } = await db.query(
    `delete from machine where ctid = any(array(
       select ctid from machine where destroyed_at < now() - interval '1 second' * $1 limit 500))`,
    [afterSeconds],
  )
  return rowCount ?? 0
}

/** Ignored when the machine was updated or stopped while the check ran. */
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
