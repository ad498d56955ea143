import type { Sandbox, SandboxDetails } from '../model/sandbox.ts'
import type { Caller } from '../model/token.ts'
import type { Query, Tx } from './db.ts'
import { callerColumns, callerCte, callerOf } from './token.ts'

const columns = `sandbox.id, sandbox.org_id as "sandboxOrgId", sandbox.name, sandbox.slot, sandbox.state,
  sandbox.state_since as "stateSince", sandbox.url_auth as "urlAuth", sandbox.private_access as "privateAccess",
  sandbox.labels, sandbox.environment, sandbox.memory_mb as "memoryMb", sandbox.cpus, sandbox.storage_gb as "storageGb",
  sandbox.network_policy as "networkPolicy", sandbox.created_at as "createdAt", sandbox.updated_at as "updatedAt",
  sandbox.last_running_at as "lastRunningAt"`

/** A sandbox that the token may see: its organization's, and for a token of one sandbox only that one. */
export const visibleSandbox = `sandbox.state in ('cold', 'running') and (token_org is null or token_org = sandbox.org_id)
  and (token_sandbox is null or token_sandbox = sandbox.name)`

type Row<T> = { [K in keyof T]: T[K] | null } & { sandboxOrgId: string | null }

export interface FoundSandbox {
  caller: Caller
  sandbox: SandboxDetails | undefined
}

/** Undefined when the token is not valid. A sandbox that the token may not see is as good as absent. */
export async function findSandbox(db: Query, tokenHash: Buffer, name: string): Promise<FoundSandbox | undefined> {
  const { rows } = await db.query<Caller & Row<SandboxDetails>>({
    name: 'find-sandbox',
    text: `with ${callerCte}
           select ${callerColumns}, found.* from caller left join lateral (
             select ${columns}, org.slug as "orgSlug" from sandbox join org on org.id = sandbox.org_id
             where sandbox.name = $2 and ${visibleSandbox}) found on true`,
    values: [tokenHash, name],
  })
  const row = rows[0]
  return row && { caller: callerOf(row), sandbox: row.id === null ? undefined : sandboxOf<SandboxDetails>(row) }
}

/** For the reconciler, which acts for every organization. */
export async function loadSandbox(db: Query, id: string): Promise<Sandbox | undefined> {
  const { rows } = await db.query<Row<Sandbox>>({
    name: 'load-sandbox',
    text: `select ${columns} from sandbox where id = $1`,
    values: [id],
  })
  return rows[0] && sandboxOf(rows[0])
}

/** Its uids and addresses may be given to another; what ran with them is gone. */
export async function releaseSlot(tx: Tx, id: string): Promise<void> {
  await tx.query('update sandbox set slot = null where id = $1', [id])
}

/** The caller's organization and the sandbox's are both in the row; the sandbox keeps its own under `orgId`. */
function sandboxOf<T extends Sandbox>(row: { sandboxOrgId: string | null }): T {
  return { ...row, orgId: row.sandboxOrgId } as unknown as T
}
