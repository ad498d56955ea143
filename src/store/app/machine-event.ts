import type { EventRequest, EventSource, MachineEvent } from '../../model/app/machine.ts'
import { newUlid } from '../../model/ids.ts'
import type { Query, Tx } from '../db.ts'

export interface NewMachineEvent {
  type: string
  status: string
  source: EventSource
  request?: EventRequest
}

export async function insertMachineEvent(tx: Tx, machineId: string, event: NewMachineEvent): Promise<string> {
  const id = newUlid()
  await tx.query({
    name: 'insert-machine-event',
    text: `insert into machine_event (id, machine_id, type, status, source, request) values ($1, $2, $3, $4, $5, $6)`,
    values: [id, machineId, event.type, event.status, event.source, event.request ?? null],
  })
  return id
}

// Clients read the exit code from the last `exit` event, so no state change may have that type.
const types: Record<string, string> = {
  launch: 'start',
  'skip launch': 'launch',
  start: 'start',
  up: 'start',
  stop: 'stop',
  down: 'stop',
  exited: 'stop',
  'gave up': 'stop',
  failed: 'failed',
  'launch failed': 'launch',
  restart: 'restart',
  suspend: 'suspend',
  frozen: 'suspend',
  update: 'update',
  kept: 'update',
  delete: 'destroy',
  'destroy itself': 'destroy',
  gone: 'destroy',
}

const commands = new Set(['start', 'stop', 'restart', 'suspend', 'update', 'delete'])

/** Records a state change as a machine event, and stores the failure if there is one. */
export async function recordTransition(
  tx: Tx,
  machineId: string,
  change: { event: string; to: string; note: string; source?: EventSource },
): Promise<void> {
  const { event, to, note } = change
  const isFailure = to === 'failed' || to === 'launch_failed' || event === 'gave up'
  const source = change.source ?? (commands.has(event) ? 'user' : 'flyd')
  const request = isFailure && note ? { error: note } : undefined
  await insertMachineEvent(tx, machineId, {
    type: types[event] ?? event,
    status: to,
    source,
    ...(request && { request }),
  })
  if (!isFailure) return
  await tx.query('update machine set failure = $2 where id = $1', [machineId, note || null])
  await wakeStandbys(tx, machineId)
}

/** Schedules an immediate start of the standby machines of a failed machine. */
async function wakeStandbys(tx: Tx, machineId: string): Promise<void> {
  await tx.query({
    name: 'wake-standbys',
    text: `update machine set next_start_at = now()
           where app_id = (select app_id from machine where id = $1) and state in ('created', 'stopped')
             and config -> 'standbys' ? $1`,
    values: [machineId],
  })
}

/** Newest first. */
export async function listMachineEvents(db: Query, machineId: string, limit: number): Promise<MachineEvent[]> {
  const { rows } = await db.query<MachineEvent>({
    name: 'list-machine-events',
    text: `select id, type, status, source, (extract(epoch from at) * 1000)::bigint as timestamp, request
           from machine_event where machine_id = $1 order by id desc limit $2`,
    values: [machineId, limit],
  })
  return rows
}

/** The first event after another that led to one of these states. A process exit is not a state change. */
export async function findEventAfter(
  db: Query,
  machineId: string,
  after: string,
  states: readonly string[],
): Promise<{ id: string; status: string } | undefined> {
  const { rows } = await db.query<{ id: string; status: string }>({
    name: 'find-machine-event-after',
    text: `select id, status from machine_event where machine_id = $1 and id > $2 and status = any($3) and type <> 'exit'
           order by id limit 1`,
    values: [machineId, after, states],
  })
  return rows[0]
}

/** Keeps only the newest events of each machine, because one that crashes in a loop writes many. */
export async function trimMachineEvents(db: Query, keep: number): Promise<void> {
  await db.query(
    `delete from machine_event where (machine_id, id) in (
       select machine_id, id from (
         select machine_id, id, row_number() over (partition by machine_id order by id desc) as nth from machine_event) numbered
       where nth > $1)`,
    [keep],
  )
}
