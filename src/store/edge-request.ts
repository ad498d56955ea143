// What the edge asks the control plane to do. The role of the edge cannot change resources itself; it can only leave a
// request, which the control plane carries out if the resource allows it.
import { stopIdleMachine } from './app/machine-load.ts'
import { wakeMachine } from './app/route.ts'
import type { Db, Query, Tx } from './db.ts'
import { wakeSandbox } from './sandbox/route.ts'

export const edgeRequestChannel = 'edge_request'

export type EdgeCommand = 'wake_sandbox' | 'wake_machine' | 'stop_machine' | 'suspend_machine'

/** Does nothing if the same request waits already. */
export async function requestFromEdge(db: Query, command: EdgeCommand, id: string): Promise<void> {
  await db.query({ name: 'request-from-edge', text: 'select request_from_edge($1, $2)', values: [command, id] })
}

const commands: Record<EdgeCommand, (tx: Tx, id: string) => Promise<unknown>> = {
  wake_sandbox: wakeSandbox,
  wake_machine: wakeMachine,
  stop_machine: (tx, id) => stopIdleMachine(tx, id, 'stop'),
  suspend_machine: (tx, id) => stopIdleMachine(tx, id, 'suspend'),
}

interface EdgeRequest {
  command: EdgeCommand
  id: string
}

/** About as long as a client waits. After a longer outage of the control plane a request may no longer be true. */
const lifetimeSeconds = 30

/** Removes the waiting requests. One that is lost or fails afterwards is made again by the edge as long as it matters. */
export async function takeEdgeRequests(db: Query): Promise<EdgeRequest[]> {
  const { rows } = await db.query<EdgeRequest>({
    name: 'take-edge-requests',
    text: `with taken as (delete from edge_request returning *)
           select command, resource_id as id from taken where requested_at > now() - interval '1 second' * $1`,
    values: [lifetimeSeconds],
  })
  return rows
}

export async function performEdgeRequest(db: Db, { command, id }: EdgeRequest): Promise<void> {
  await db.transaction((tx) => commands[command](tx, id))
}
