import { requireSandboxCaller } from '../../model/account/caller.ts'
import type { Caller } from '../../model/account/token.ts'
import { notFound } from '../../model/errors.ts'
import {
  maxSandboxes,
  type Sandbox,
  type SandboxCounts,
  type SandboxDetails,
  type SandboxImage,
  sandboxNamePattern,
  sandboxStates,
} from '../../model/sandbox/sandbox.ts'
import { callerColumns, callerCte, callerOf } from '../account/token.ts'
import type { Db, Query, Tx } from '../db.ts'
import { transition } from '../transition.ts'

const columns = `sandbox.id, sandbox.org_id as "sandboxOrgId", sandbox.name, sandbox.slot, sandbox.state,
  sandbox.state_since as "stateSince", sandbox.url_auth as "urlAuth", sandbox.private_access as "privateAccess",
  sandbox.labels, sandbox.environment, sandbox.memory_mb as "memoryMb", sandbox.cpus, sandbox.storage_gb as "storageGb",
  sandbox.region, sandbox.network_policy as "networkPolicy", sandbox.privileges, sandbox.resources,
  sandbox.source_id as "sourceId", sandbox.image, sandbox.used_bytes as "usedBytes", sandbox.measured_at as "measuredAt",
  coalesce(sandbox.held_until > now(), false) as "isHeld", sandbox.created_at as "createdAt",
  sandbox.updated_at as "updatedAt", sandbox.last_running_at as "lastRunningAt"`

const alive = `sandbox.state in ('cold', 'running')`

/** What the token may see, in whatever state: its organization's, and for a token of one sandbox only that one. */
const ownSandbox = `(token_org is null or token_org = sandbox.org_id)
  and (token_sandbox is null or token_sandbox = sandbox.name)`

/** A sandbox that the token may see. */
export const visibleSandbox = `${alive} and ${ownSandbox}`

type Row<T> = { [K in keyof T]: T[K] | null } & { sandboxOrgId: string | null }

export interface FoundSandbox {
  caller: Caller
  sandbox: SandboxDetails | undefined
}

/** Undefined when the token is not valid. A sandbox that the token may not see is as good as absent. */
export function findSandbox(db: Pick<Db, 'read'>, tokenHash: Buffer, name: string): Promise<FoundSandbox | undefined> {
  return findBy(db, 'find-sandbox', `sandbox.name = $2 and ${visibleSandbox}`, [tokenHash, name])
}

/** The same by id and in any state, for whoever watches: what is gone was there a moment ago. */
export function findSandboxById(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  id: string,
): Promise<FoundSandbox | undefined> {
  return findBy(db, 'find-sandbox-by-id', `sandbox.id = $2 and ${ownSandbox}`, [tokenHash, id])
}

async function findBy(db: Pick<Db, 'read'>, name: string, condition: string, values: [Buffer, string]) {
  const [row] = await db.read<Caller & Row<SandboxDetails>>({
    name,
    text: `with ${callerCte}
           select ${callerColumns}, found.* from caller left join lateral (
             select ${columns}, org.slug as "orgSlug" from sandbox join org on org.id = sandbox.org_id
             where ${condition}) found on true`,
    values,
  })
  return foundOf(row)
}

export interface VisibleSandbox {
  caller: Caller
  sandbox: SandboxDetails
}

/** For everybody who does something with a sandbox. */
export async function getVisibleSandbox(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  name: string,
): Promise<VisibleSandbox> {
  // What cannot be a name, such as a NUL byte, does not reach the database.
  const found = await findSandbox(db, tokenHash, sandboxNamePattern.test(name) ? name : '')
  const caller = requireSandboxCaller(found?.caller)
  if (!found?.sandbox) throw notFound('sandbox not found')
  return { caller, sandbox: found.sandbox }
}

export type NewSandbox = Pick<
  Sandbox,
  | 'id'
  | 'name'
  | 'urlAuth'
  | 'privateAccess'
  | 'labels'
  | 'environment'
  | 'memoryMb'
  | 'cpus'
  | 'storageGb'
  | 'region'
  | 'image'
> & {
  /** Null for the organization of the token. */
  orgSlug: string | null
  /** Of the token with which the sandbox asks about itself. */
  insideHash: Buffer
}

export interface InsertedSandbox {
  caller: Caller
  orgFound: boolean
  nameTaken: boolean
  hasRoom: boolean
  /** Undefined when one of the above stands against it, or the token may not create. */
  sandbox: SandboxDetails | undefined
}

/**
 * Checks the token, finds the organization, takes the lowest free slot and inserts, in one statement. Undefined when the
 * token is not valid.
 */
export async function insertSandbox(
  db: Query,
  tokenHash: Buffer,
  input: NewSandbox,
): Promise<InsertedSandbox | undefined> {
  for (;;) {
    const made = await tryInsert(db, tokenHash, input)
    if (!made || made.sandbox || made.nameTaken || !made.hasRoom || !made.orgFound) return made
    if (made.caller.kind !== 'root' && made.caller.kind !== 'org') return made
    // Somebody else took the slot or the name since the statement looked. One of us came forward, so this ends.
  }
}

async function tryInsert(db: Query, tokenHash: Buffer, input: NewSandbox): Promise<InsertedSandbox | undefined> {
  const { rows } = await db.query<Caller & Row<SandboxDetails> & Omit<InsertedSandbox, 'caller' | 'sandbox'>>({
    name: 'insert-sandbox',
    text: `with ${callerCte},
           org as (
             select org.* from org, caller
             where (token_org is null or token_org = org.id)
               and case when $2::text is null then org.id = token_org or token_org is null and slug = 'personal'
                   else slug = $2 end),
           taken as (select 1 from sandbox where name = $4 and ${alive}),
           free as (
             select min(n) as slot from generate_series(1, ${maxSandboxes}) n
             where not exists (select 1 from box_slot where box_slot.slot = n)),
           sandbox as (
             insert into sandbox (id, org_id, name, slot, url_auth, private_access, labels, environment, memory_mb, cpus,
               storage_gb, region, image)
             select $3, org.id, $4, free.slot, $5, $6, $7, $8, $9, $10, $11, $12, $14 from org, caller, free
             where token_kind in ('root', 'org') and free.slot is not null and not exists (select 1 from taken)
             on conflict do nothing
             returning *),
           inside as (
             insert into token (id, hash, kind, org_id, sandbox, inside)
             select id, $13, 'sandbox', org_id, name, true from sandbox)
           select ${callerColumns}, org.id is not null as "orgFound", exists (select 1 from taken) as "nameTaken",
             free.slot is not null as "hasRoom", ${columns}, org.slug as "orgSlug"
           from caller left join org on true left join free on true left join sandbox on true`,
    values: [
      tokenHash,
      input.orgSlug,
      input.id,
      input.name,
      input.urlAuth,
      input.privateAccess,
      input.labels,
      input.environment,
      input.memoryMb,
      input.cpus,
      input.storageGb,
      input.region,
      input.insideHash,
      input.image,
    ],
  })
  const row = rows[0]
  return row && { ...foundOf(row)!, orgFound: row.orgFound, nameTaken: row.nameTaken, hasRoom: row.hasRoom }
}

export interface SandboxList {
  caller: Caller
  orgFound: boolean
  /** Null for a root token that asked for no organization: it sees all. */
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

/** By name. Undefined when the token is not valid. The counts are of all that the token sees, whatever the prefix. */
export async function listSandboxes(
  db: Query,
  tokenHash: Buffer,
  filter: ListFilter,
): Promise<SandboxList | undefined> {
  const { rows } = await db.query<
    Caller & Row<SandboxDetails> & SandboxCounts & { orgFound: boolean; shownOrg: string | null }
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
             select ${columns}, org.slug as "orgSlug" from sandbox join org on org.id = sandbox.org_id, caller
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

/** For the reconciler, which acts for every organization. */
export async function loadSandbox(db: Query, id: string): Promise<Sandbox | undefined> {
  const { rows } = await db.query<Row<Sandbox>>({
    name: 'load-sandbox',
    text: `select ${columns} from sandbox where id = $1`,
    values: [id],
  })
  return rows[0] && sandboxOf(rows[0])
}

export type SandboxChanges = Partial<
  Pick<Sandbox, 'urlAuth' | 'privateAccess' | 'labels' | 'environment' | 'memoryMb' | 'cpus' | 'storageGb' | 'region'> &
    Pick<Sandbox, 'networkPolicy' | 'privileges' | 'resources'>
>

const changeable: Record<keyof SandboxChanges, string> = {
  urlAuth: 'url_auth',
  privateAccess: 'private_access',
  labels: 'labels',
  environment: 'environment',
  memoryMb: 'memory_mb',
  cpus: 'cpus',
  storageGb: 'storage_gb',
  region: 'region',
  networkPolicy: 'network_policy',
  privileges: 'privileges',
  resources: 'resources',
}

/** Only what is given changes. False when it is being deleted. */
export async function updateSandbox(tx: Tx, id: string, changes: SandboxChanges): Promise<boolean> {
  const given = (Object.keys(changeable) as (keyof SandboxChanges)[]).filter((key) => changes[key] !== undefined)
  const settings = given.map((key, index) => `${changeable[key]} = $${index + 2}`)
  const { rowCount } = await tx.query(
    `update sandbox set ${[...settings, 'updated_at = now()'].join(', ')} where id = $1 and ${alive}`,
    [id, ...given.map((key) => changes[key])],
  )
  return rowCount === 1
}

/** A cold one runs from now on. */
export async function useSandbox(tx: Tx, id: string): Promise<void> {
  await tx.query('update sandbox set last_running_at = now() where id = $1', [id])
  await transition(tx, 'sandbox', sandboxStates, id, 'use')
}

export async function setSandboxImage(db: Query, id: string, image: SandboxImage): Promise<void> {
  await db.query('update sandbox set image = $2 where id = $1', [id, image])
}

/** Digests of what sandboxes are made from, also of those that are being removed. */
export async function listSandboxImages(db: Query): Promise<string[]> {
  const { rows } = await db.query<{ digest: string }>(
    `select distinct image ->> 'digest' as digest from sandbox where image ->> 'digest' is not null and slot is not null`,
  )
  return rows.map((row) => row.digest)
}

export async function setUsedBytes(tx: Tx, id: string, bytes: number): Promise<void> {
  await tx.query('update sandbox set used_bytes = $2, measured_at = now() where id = $1', [id, bytes])
}

/** Longer than a stop and a start take; when whoever holds it dies, others wait no longer than this. */
const holdSeconds = 30

/** From now on nobody starts it but the caller. */
export async function holdSandbox(db: Query, id: string): Promise<void> {
  await db.query(`update sandbox set held_until = now() + interval '1 second' * $2 where id = $1`, [id, holdSeconds])
}

export async function releaseSandbox(db: Query, id: string): Promise<void> {
  await db.query('update sandbox set held_until = null where id = $1', [id])
}

/** Its uids and addresses may be given to another; what ran with them is gone, and so is what it owned. */
export async function releaseSlot(tx: Tx, id: string): Promise<void> {
  for (const table of ['service', 'checkpoint', 'task'])
    await tx.query(`delete from ${table} where sandbox_id = $1`, [id])
  await tx.query('update sandbox set slot = null where id = $1', [id])
}

export interface OrgSandboxes {
  caller: Caller
  /** Undefined when there is no such organization, or none that the token may see. */
  org: { slug: string; running: string[] } | undefined
}

/** The organization asked for, else that of the token, else `personal`, with the names of what runs in it. */
export async function findOrgSandboxes(
  db: Query,
  tokenHash: Buffer,
  slug: string | null,
): Promise<OrgSandboxes | undefined> {
  const { rows } = await db.query<Caller & { slug: string | null; running: string[] }>({
    name: 'find-org-sandboxes',
    text: `with ${callerCte}
           select ${callerColumns}, org.slug, array(
             select sandbox.name::text from sandbox
             where sandbox.org_id = org.id and sandbox.state = 'running' and ${ownSandbox} order by 1) as running
           from caller left join org on (token_org is null or token_org = org.id)
             and case when $2::text is null then org.id = token_org or token_org is null and slug = 'personal'
                 else slug = $2 end`,
    values: [tokenHash, slug],
  })
  const row = rows[0]
  if (!row) return undefined
  return { caller: callerOf(row), org: row.slug === null ? undefined : { slug: row.slug, running: row.running } }
}

function foundOf(row: (Caller & Row<SandboxDetails>) | undefined): FoundSandbox | undefined {
  return row && { caller: callerOf(row), sandbox: row.id === null ? undefined : sandboxOf<SandboxDetails>(row) }
}

/** The caller's organization and the sandbox's are both in the row; the sandbox keeps its own under `orgId`. */
function sandboxOf<T extends Sandbox>(row: { sandboxOrgId: string | null }): T {
  return { ...row, orgId: row.sandboxOrgId } as unknown as T
}
