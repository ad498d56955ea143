import type { EventSource } from '../model/app/machine.ts'
import { notFound } from '../model/errors.ts'
import { isWorking, nextState, type StateTable } from '../model/states.ts'
import { noteTransition } from './app/machine-event.ts'
import type { Tx } from './db.ts'
import { enqueue } from './work.ts'

/** Resource tables that have a `state` column. The name goes into SQL text, so it comes from this list only. */
export type Kind = 'machine' | 'app' | 'cluster' | 'backup' | 'drill' | 'sandbox' | 'volume' | 'snapshot'

/**
 * Lock order everywhere: the resource first, then its work row. Steps of machines and volumes lock these and then refer
 * to their app, the step of an app that is deleted locks it and then them, so an app is locked in a way that lets others
 * refer to it. Whoever adds something to an app holds it with `for share`.
 */
export async function lockState(tx: Tx, kind: Kind, id: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ state: string }>({
    name: `lock-${kind}`,
    text: `select state from ${kind} where id = $1 for ${kind === 'app' ? 'no key update' : 'update'}`,
    values: [id],
  })
  return rows[0]?.state
}

/**
 * The only code that writes a `state` column. It checks the table, records the event, and enqueues work if the new
 * state needs any, all in the caller's transaction.
 */
export async function transition(
  tx: Tx,
  kind: Kind,
  states: StateTable,
  id: string,
  event: string,
  note = '',
  /** Who asked, where that is shown. */
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
  if (kind === 'machine') await noteTransition(tx, id, { event, to, note, ...(source && { source }) })
  if (isWorking(states, to)) await enqueue(tx, kind, id)
  return to
}
