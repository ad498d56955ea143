import { requireSandboxCaller } from '../../model/account/caller.ts'
import type { Caller } from '../../model/account/token.ts'
import { notFound } from '../../model/errors.ts'
import {
  maxSandboxes,
  type Sandbox,
  type SandboxCounts,
  type SandboxDetails,
  sandboxNamePattern,
} from '../../model/sandbox/sandbox.ts'
import { callerColumns, callerCte, callerOf } from '../account/token.ts'
import type { Db, Query } from '../db.ts'

export const sandboxColumns = `sandbox.id, sandbox.org_id as "sandboxOrgId", sandbox.name, sandbox.slot, sandbox.state,
  sandbox.state_since as "stateSince", sandbox.url_auth as "urlAuth", sandbox.private_access as "privateAccess",
  sandbox.labels, sandbox.environment, sandbox.memory_mb as "memoryMb", sandbox.cpus, sandbox.storage_gb as "storageGb",
  sandbox.region, sandbox.network_policy as "networkPolicy", sandbox.privileges, sandbox.resources,
  sandbox.source_id as "sourceId", sandbox.image, sandbox.used_bytes as "usedBytes", sandbox.measured_at as "measuredAt",
  sandbox.problem, coalesce(sandbox.held_until > now(), false) as "isHeld", sandbox.created_at as "createdAt",
  sandbox.updated_at as "updatedAt", sandbox.last_running_at as "lastRunningAt"`

/** A sandbox that is being deleted no longer exists for callers, and its name is free. */
export const aliveSandbox = `sandbox.state in ('cold', 'running')`

/** A token sees the sandboxes of its organization; a sandbox token sees only its own sandbox. */
const ownSandbox = `(token_org is null or token_org = sandbox.org_id)
  and (token_sandbox is null or token_sandbox = sandbox.name)`

export const visibleSandbox = `${aliveSandbox} and ${ownSandbox}`

export type SandboxRow<T> = { [K in keyof T]: T[K] | null } & { sandboxOrgId: string | null }

export interface FoundSandbox {
  caller: Caller
  /** Undefined when there is none that the token may see. */
  sandbox: SandboxDetails | undefined
}

/** Undefined when the token is not valid. */
function findSandbox(db: Pick<Db, 'read'>, tokenHash: Buffer, name: string): Promise<FoundSandbox | undefined> {
  return findBy(db, 'find-sandbox', `sandbox.name = $2 and ${visibleSandbox}`, [tokenHash, name])
}

/** Finds the sandbox in any state, so that watchers can report its deletion. */
export function findSandboxById(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  id: string,
): Promise<FoundSandbox | undefined> {
  return findBy(db, 'find-sandbox-by-id', `sandbox.id = $2 and ${ownSandbox}`, [tokenHash, id])
}

async function findBy(db: Pick<Db, 'read'>, name: string, condition: string, values: [Buffer, string]) {
  const [row] = await db.read<Caller & SandboxRow<SandboxDetails>>({
    name,
    text: `with ${callerCte}
           select ${callerColumns}, found.* from caller left join lateral (
             select ${sandboxColumns}, org.slug as "orgSlug" from sandbox join org on org.id = sandbox.org_id
             where ${condition}) found on true`,
    values,
  })
  return foundSandbox(row)
}

export interface VisibleSandbox {
  caller: Caller
  sandbox: SandboxDetails
}

/** Throws unless the token is valid and may see the sandbox. */
export async function getVisibleSandbox(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  name: string,
): Promise<VisibleSandbox> {
  // Invalid names must not reach the database, which rejects NUL bytes with an error.
  const found = await findSandbox(db, tokenHash, sandboxNamePattern.test(name) ? name : '')
  const caller = requireSandboxCaller(found?.caller)
  if (!found?.sandbox) throw notFound('sandbox not found')
  return { caller, sandbox: found.sandbox }
}

export interface SandboxList {
  caller: Caller
  orgFound: boolean
  /** Null when a root token lists the sandboxes of all organizations. */
  orgSlug: string | null
  counts: SandboxCounts
  sandboxes: SandboxDetails[]
}

export interface ListFilter {
  orgSlug: string | null
  prefix: string
  after: string
  limit: number
}

/** A page sorted by name; undefined when the token is not valid. The counts ignore prefix and page. */
export async function listSandboxes(
  db: Query,
  tokenHash: Buffer,
  filter: ListFilter,
): Promise<SandboxList | undefined> {
  const { rows } = await db.query<
    Caller & SandboxRow<SandboxDetails> & SandboxCounts & { orgFound: boolean; shownOrg: string | null }
  >({
    name: 'list-sandboxes',
    text: `with ${callerCte},
           asked as (
             select org.id, org.slug from org, caller
             where (token_org is null or token_org = org.id) and (slug = $2 or $2::text is null and org.id = token_org)),
           counted as (
             select count(*) filter (where state = 'running') as running, count(*) filter (where state = 'cold') as cold
             from sandbox, caller where ${visibleSandbox} and ($2::text is null or org_id = (select id from asked)))
           select ${callerColumns}, asked.slug as "shownOrg", asked.id is not null or $2::text is null as "orgFound",
             running, cold, page.*
           from caller left join asked on true, counted left join lateral (
             select ${sandboxColumns}, org.slug as "orgSlug" from sandbox join org on org.id = sandbox.org_id, caller
             where ${visibleSandbox} and ($2::text is null or org_id = (select id from asked))
               and starts_with(sandbox.name, $3) and sandbox.name > $4
             order by sandbox.name limit $5) page on true
           order by page.name`,
    values: [tokenHash, filter.orgSlug, filter.prefix, filter.after, filter.limit],
  })
  const first = rows[0]
  if (!first) return undefined
  return {
    caller: callerOf(first),
    orgFound: first.orgFound,
    orgSlug: first.shownOrg,
    counts: { running: first.running, cold: first.cold },
    sandboxes: rows.filter((row) => row.id !== null).map((row) => sandboxOf<SandboxDetails>(row)),
  }
}

/** Reads without a token, for the reconciler. */
export async function loadSandbox(db: Query, id: string): Promise<Sandbox | undefined> {
  const { rows } = await db.query<SandboxRow<Sandbox>>({
    name: 'load-sandbox',
    text: `select ${sandboxColumns} from sandbox where id = $1`,
    values: [id],
  })
  return rows[0] && sandboxOf(rows[0])
}

/** The ids of all sandboxes that have a box or may get one. */
export async function listBoxHolders(db: Query): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>('select id from sandbox where slot is not null')
  return rows.map(({ id }) => id)
}

/** Digests of the images in use, including those of sandboxes that are being deleted. */
export async function listSandboxImages(db: Query): Promise<string[]> {
  const { rows } = await db.query<{ digest: string }>(
    `select distinct image ->> 'digest' as digest from sandbox where image ->> 'digest' is not null and slot is not null`,
  )
  return rows.map((row) => row.digest)
}

export interface OrgSandboxes {
  caller: Caller
  /** Undefined when there is none that the token may see. */
  org: { slug: string; running: string[]; maxSandboxes: number } | undefined
}

/** The requested organization, by default the token's or `personal`, with the names of its running sandboxes. */
export async function findOrgSandboxes(
  db: Query,
  tokenHash: Buffer,
  slug: string | null,
): Promise<OrgSandboxes | undefined> {
  const { rows } = await db.query<Caller & { slug: string | null; running: string[]; limit: number }>({
    name: 'find-org-sandboxes',
    text: `with ${callerCte}
           select ${callerColumns}, org.slug, array(
             select sandbox.name::text from sandbox
             where sandbox.org_id = org.id and sandbox.state = 'running' and ${ownSandbox} order by 1) as running,
             least(quota_limit(org.id, 'sandboxes'), ${maxSandboxes}) as limit
           from caller left join org on (token_org is null or token_org = org.id)
             and case when $2::text is null then org.id = token_org or token_org is null and slug = 'personal'
                 else slug = $2 end`,
    values: [tokenHash, slug],
  })
  const row = rows[0]
  if (!row) return undefined
  const { slug: found, running, limit } = row
  return { caller: callerOf(row), org: found === null ? undefined : { slug: found, running, maxSandboxes: limit } }
}

export function foundSandbox(row: (Caller & SandboxRow<SandboxDetails>) | undefined): FoundSandbox | undefined {
  return row && { caller: callerOf(row), sandbox: row.id === null ? undefined : sandboxOf<SandboxDetails>(row) }
}

/** The row holds the organizations of both caller and sandbox; only the sandbox's becomes `orgId`. */
function sandboxOf<T extends Sandbox>(row: { sandboxOrgId: string | null }): T {
  return { ...row, orgId: row.sandboxOrgId } as unknown as T
}
