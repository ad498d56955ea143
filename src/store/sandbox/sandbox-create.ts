import type { Caller } from '../../model/account/token.ts'
import { maxSandboxes, type Sandbox, type SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { callerColumns, callerCte } from '../account/token.ts'
import type { Db, Query } from '../db.ts'
import { aliveSandbox, foundSandbox, type SandboxRow, sandboxColumns } from './sandbox.ts'

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
  /** Null for the token's organization. */
  orgSlug: string | null
  /** The hash of the token with which the sandbox calls the API about itself. */
  insideHash: Buffer
}

export interface InsertedSandbox {
  caller: Caller
  orgFound: boolean
  nameTaken: boolean
  /** False when every slot is in use. */
  hasRoom: boolean
  /** Undefined when a condition above failed, or the token may not create sandboxes. */
  sandbox: SandboxDetails | undefined
}

/**
 * Checks the token, finds the organization, takes the lowest free slot and inserts, all in one statement. Returns
 * undefined when the token is not valid.
 */
export async function insertSandbox(
  db: Query,
  tokenHash: Buffer,
  input: NewSandbox,
): Promise<InsertedSandbox | undefined> {
  for (;;) {
    const result = await tryInsert(db, tokenHash, input)
    if (!result || result.sandbox || result.nameTaken || !result.hasRoom || !result.orgFound) return result
    if (result.caller.kind !== 'root' && result.caller.kind !== 'org') return result
    // A concurrent insert took the slot or the name. Each retry means that another insert succeeded, so this ends.
  }
}

async function tryInsert(db: Query, tokenHash: Buffer, input: NewSandbox): Promise<InsertedSandbox | undefined> {
  const { rows } = await db.query<Caller & SandboxRow<SandboxDetails> & Omit<InsertedSandbox, 'caller' | 'sandbox'>>({
    name: 'insert-sandbox',
    text: `with ${callerCte},
           org as (
             select org.* from org, caller
             where (token_org is null or token_org = org.id)
               and case when $2::text is null then org.id = token_org or token_org is null and slug = 'personal'
                   else slug = $2 end),
           taken as (select 1 from sandbox where name = $4 and ${aliveSandbox}),
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
             free.slot is not null as "hasRoom", ${sandboxColumns}, org.slug as "orgSlug"
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
  return row && { ...foundSandbox(row)!, orgFound: row.orgFound, nameTaken: row.nameTaken, hasRoom: row.hasRoom }
}

/**
 * Runs the task if nothing has this slot. A box that is created meanwhile and wants it waits for the end of the task, which
 * must be short.
 */
export async function withFreeSlot(db: Db, slot: number, task: () => Promise<void>): Promise<void> {
  await db.transaction(async (tx) => {
    const { rowCount } = await tx.query(
      `insert into box_slot (slot, holder) values ($1, 'stray') on conflict do nothing`,
      [slot],
    )
    if (rowCount === 0) return
    await task()
    await tx.query('delete from box_slot where slot = $1', [slot])
  })
}
