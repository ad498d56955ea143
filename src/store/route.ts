// What the edge knows of the platform. It holds a copy in memory, so a route costs no query and outlives the database.

import { sandboxStates } from '../model/sandbox.ts'
import type { Query, Tx } from './db.ts'
import { lockState, transition } from './transition.ts'
import { enqueue } from './work.ts'

/** Notifications carry `<kind> <id>` of what changed. */
export const routeChannel = 'route'

export interface SandboxRoute {
  id: string
  name: string
  orgId: string
  slot: number
  state: 'cold' | 'running'
  urlAuth: 'sprite' | 'public'
  /** The owner of the HTTP port, if a service has one. */
  service: string | null
  httpPort: number | null
  wanted: boolean | null
  health: { check: { http: { path: string; port: number } } | { command: string[] } } | null
}

/** All that can be reached, or those of `ids` that can. */
export async function listSandboxRoutes(db: Query, ids: string[] | null): Promise<SandboxRoute[]> {
  const { rows } = await db.query<SandboxRoute>({
    name: ids ? 'some-routes' : 'all-routes',
    text: `select sandbox.id, sandbox.name, sandbox.org_id as "orgId", sandbox.slot, sandbox.state,
             sandbox.url_auth as "urlAuth", service.name as service, service.http_port as "httpPort", service.wanted,
             service.health
           from sandbox left join service on service.sandbox_id = sandbox.id and service.http_port is not null
           where sandbox.state in ('cold', 'running') and sandbox.slot is not null ${ids ? 'and sandbox.id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}

/** Has the sandbox looked at: afterwards it runs, and so do its services that are wanted. */
export async function wakeSandbox(tx: Tx, id: string): Promise<void> {
  const state = await lockState(tx, 'sandbox', id)
  if (state === 'cold') await transition(tx, 'sandbox', sandboxStates, id, 'use')
  else if (state === 'running') await enqueue(tx, 'sandbox', id)
}
