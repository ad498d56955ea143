import type { EventSource } from '../model/app/machine.ts'
import { notFound } from '../model/errors.ts'
import { isWorking, nextState, type StateTable } from '../model/states.ts'
import { recordTransition } from './app/machine-event.ts'
import type { Tx } from './db.ts'
import { enqueue } from './work.ts'

/** Resource tables with a `state` column. The name becomes part of SQL text, so it must come from this list. */
export type Kind = 'machine' | 'app' | 'cluster' | 'backup' | 'drill' | 'import' | 'sandbox' | 'volume' | 'snapshot'

/**
 * Locks a resource. The lock order is the resource first, then its work row. Steps of machines and volumes lock those rows
 * and then reference their app by foreign key, while the deletion of an app locks the app and then them. To avoid that
 * deadlock, an app is locked with `for no key update`, and code that adds rows to an app locks it with `for share`. A machine
 * is locked in the same way: it is locked before its volumes, and changing a volume checks the foreign key to its machine.
 */
export async function lockState(tx: Tx, kind: Kind, id: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ state: string }>({
    name: `lock-${kind}`,
    text: `select state from ${kind} where id = $1 for ${kind === 'app' || kind === 'machine' ? 'no key update' : 'update'}`,
    values: [id],
  })
  return rows[0]?.state
}

/**
 * The only code that writes a `state` column. It checks the state table, records the event and enqueues work if the new
 * state needs it, all in the caller's transaction.
 */
export async function transition(
  tx: Tx,
  kind: Kind,
  states: StateTable,
  id: string,
  event: string,
  note = '',
  /** The source that machine events show. */
  source?: EventSource,
): Promise<string> {
  const from = await lockState(tx, kind, id)
  if (from === undefined) throw notFound(`${kind} not found`)
  const to = nextState(states, from, event)
  await tx.query({
    name: `transition-${kind}`,
    text: `with changed as (update ${kind} set state = $2, state_since = now() where id = $1)
           insert into event (kind, resource_id, from_state, to_state, event, note)
           values ('${kind}', $1, $3, $2, $4, $5)`,
    values: [id, to, from, event, note],
  })
  if (kind === 'machine') await recordTransition(tx, id, { event, to, note, ...(source && { source }) })
  if (isWorking(states, to)) await enqueue(tx, kind, id)
  return to
}
