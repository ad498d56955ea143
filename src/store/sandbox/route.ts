// The edge's view of sandboxes. It caches the rows in memory, so that routing needs no query and works without the database.

import type { Query, Tx } from '../db.ts'
import { lockState } from '../transition.ts'
import { enqueue } from '../work.ts'
import { useSandbox } from './sandbox-change.ts'

export interface SandboxRoute {
  id: string
  name: string
  orgId: string
  slot: number
  state: 'cold' | 'running'
  urlAuth: 'sprite' | 'public'
  privateAccess: 'admins' | 'org_users'
  /** The service with an HTTP port, if any. */
  service: string | null
  httpPort: number | null
  wanted: boolean | null
  health: { check: { http: { path: string; port: number } } | { command: string[] } } | null
  /** When it was last ready; null if it was not ready at the last check. */
  readyAtMs: number | null
  /** Why it had failed at the last check. */
  failure: string | null
}

/** All routable sandboxes, or the routable ones among `ids`. */
export async function listSandboxRoutes(db: Query, ids: string[] | null): Promise<SandboxRoute[]> {
  const { rows } = await db.query<SandboxRoute>({
    name: ids ? 'some-routes' : 'all-routes',
    text: `select sandbox.id, sandbox.name, sandbox.org_id as "orgId", sandbox.slot, sandbox.state,
             sandbox.url_auth as "urlAuth", sandbox.private_access as "privateAccess", service.name as service, service.http_port as "httpPort", service.wanted,
             service.health, service.failure, (extract(epoch from service.ready_at) * 1000)::float8 as "readyAtMs"
           from sandbox left join service on service.sandbox_id = sandbox.id and service.http_port is not null
           where sandbox.state in ('cold', 'running') and sandbox.slot is not null ${ids ? 'and sandbox.id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}

/** Makes the reconciler start the sandbox and its services. */
export async function wakeSandbox(tx: Tx, id: string): Promise<void> {
  const state = await lockState(tx, 'sandbox', id)
  if (state === 'cold') await useSandbox(tx, id)
  else if (state === 'running') await enqueue(tx, 'sandbox', id)
}
