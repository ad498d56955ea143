import type { Caller } from '../../model/account/token.ts'
import type { App, AppOrg, AppSummary, CreatedAppRow } from '../../model/app/app.ts'
import { BerthError } from '../../model/errors.ts'
import { appCallersCte, callerColumns, callerCte, callerOf, callersCte } from '../account/token.ts'
import { byPosition } from '../batch.ts'
import type { Db, Query, Tx } from '../db.ts'
import { translateError } from '../db-error.ts'

const columns = `app.id, app.numeric_id as "numericId", app.org_id as "orgId", app.name, app.network,
  app.enable_subdomains as "enableSubdomains", app.state, app.state_since as "stateSince", app.created_at as "createdAt"`

const shownColumns = `app.id, app.numeric_id as "numericId", app.org_id as "orgId", app.name, app.network`

const orgColumns = `org.name as "orgName", org.slug as "orgSlug", org.numeric_id as "orgNumericId"`

/** Counted on every read; a stored count could drift. */
const counts = `lateral (
    select count(*) as "machineCount", count(*) filter (where state = 'started') as "startedCount"
    from machine where app_id = app.id and state <> 'destroyed') machines,
  lateral (
    select count(*) as "volumeCount" from volume
    where app_id = app.id and state not in ('pending_destroy', 'destroying', 'destroyed')) volumes`

const countColumns = `"machineCount", "startedCount", "volumeCount"`

/** A row with the caller and, if found, the other columns. */
type Found<T> = Caller & { [K in keyof T]: T[K] | null }

export interface FoundApp {
  caller: Caller
  app: AppSummary | undefined
}

/** Undefined when the token is not valid. Names are global, so the app may belong to another organization. */
export function findApp(db: Pick<Db, 'batch'>, tokenHash: Buffer, name: string): Promise<FoundApp | undefined> {
  return db.batch(findApps, { tokenHash, name })
}

async function findApps(db: Query, asked: { tokenHash: Buffer; name: string }[]): Promise<(FoundApp | undefined)[]> {
  const { rows } = await db.query<Caller & { position: number; app: AppSummary | null }>({
    name: 'find-apps',
    // The app is one JSON column, because parsing twenty columns costs the client more than the statement costs the server.
    text: `with asked as (
             select * from unnest($1::bytea[], $2::text[]) with ordinality as asked (token_hash, app_name, position)),
           ${appCallersCte}
           select position, ${callerColumns}, to_json(found) as app from caller left join lateral (
             select ${shownColumns}, ${orgColumns}, ${countColumns},
               (select number from network where org_id = app.org_id and name = app.network) as "networkNumber"
             from app join org on org.id = app.org_id, ${counts}
             where app.name = app_name and app.state = 'active') found on true`,
    values: [asked.map(({ tokenHash }) => tokenHash), asked.map(({ name }) => name)],
  })
  return byPosition(asked, rows).map((row) => row && { caller: callerOf(row), app: row.app ?? undefined })
}

/** The app of a machine or volume in the caller's organization. Access to the app is yet to be checked. */
export async function findAppNameOf(
  db: Pick<Db, 'read'>,
  id: string,
  { orgId }: Pick<Caller, 'orgId'>,
): Promise<string | undefined> {
  const [row] = await db.read<{ name: string }>({
    name: 'find-app-name-of',
    text: `select app.name from app where app.state = 'active' and app.id in (
             select app_id from machine where id = $1 union all select app_id from volume where id = $1)
             and ($2::text is null or org_id = $2)`,
    values: [id, orgId],
  })
  return row?.name
}

export interface NewApp {
  id: string
  orgSlug: string
  name: string
  network: string
  enableSubdomains: boolean
}

export interface InsertedApp {
  caller: Caller
  orgFound: boolean
  /** Undefined when the organization does not exist, the token may not write, or the name is taken. */
  app: CreatedAppRow | undefined
}

/** Checks the token, finds the organization and inserts the app in one statement. Undefined when the token is not valid. */
export async function insertApp(
  db: Pick<Db, 'batch'>,
  tokenHash: Buffer,
  input: NewApp,
): Promise<InsertedApp | undefined> {
  const result = await db.batch(insertAppsWithinQuota, { ...input, tokenHash })
  if (result instanceof BerthError) throw result
  return result
}

type AppInput = NewApp & { tokenHash: Buffer }
type AppResult = InsertedApp | undefined | BerthError

/**
 * An exceeded quota fails the whole statement. Then the apps of this organization are inserted one by one, until the first
 * that does not fit, and the others together.
 */
async function insertAppsWithinQuota(db: Query, inputs: AppInput[]): Promise<AppResult[]> {
  try {
    return await insertApps(db, inputs)
  } catch (error) {
    const excess = translateError(error)
    if (!(excess instanceof BerthError) || excess.details.excess === undefined || inputs.length === 1) throw error
    const isOver = ({ orgSlug }: AppInput) => orgSlug === excess.details.excess?.organization
    const results = new Map<AppInput, AppResult>()
    const others = inputs.filter((input) => !isOver(input))
    const inserted = others.length > 0 ? await insertAppsWithinQuota(db, others) : []
    for (const [index, input] of others.entries()) results.set(input, inserted[index])
    let refusal: BerthError | undefined
    for (const input of inputs.filter(isOver)) {
      const [result] = refusal ? [refusal] : await insertApps(db, [input]).catch((err) => [asRefusal(err)])
      if (result instanceof BerthError) refusal = result
      results.set(input, result)
    }
    return inputs.map((input) => results.get(input))
  }
}

function asRefusal(err: unknown): BerthError {
  const error = translateError(err)
  if (error instanceof BerthError) return error
  throw err
}

type InsertedRow = Found<Pick<CreatedAppRow, 'numericId' | 'createdAt' | keyof AppOrg>>

async function insertApps(db: Query, inputs: AppInput[]): Promise<(InsertedApp | undefined)[]> {
  const { rows } = await db.query<InsertedRow & { position: number }>({
    name: 'insert-apps',
    // Returns only unknown columns, because each costs the client time. One of several inserts of the same name succeeds.
    text: `with asked as (
             select * from unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[])
               with ordinality as asked (token_hash, org_slug, app_id, app_name, app_network, subdomains, position)),
           ${callersCte},
           found as (
             select caller.*, org.id as org_id, ${orgColumns} from caller left join org
               on slug = org_slug and (token_org is null or token_org = org.id) and token_kind <> 'sandbox'),
           app as (
             insert into app (id, org_id, name, network, enable_subdomains)
             select app_id, org_id, app_name, app_network, subdomains from found
             where org_id is not null and token_kind <> 'read'
             on conflict (name) where state = 'active' do nothing
             returning id, numeric_id as "numericId", created_at as "createdAt")
           select ${callerColumns}, position, "orgName", "orgSlug", "orgNumericId", "numericId", "createdAt"
           from found left join app on app.id = app_id`,
    values: [
      inputs.map(({ tokenHash }) => tokenHash),
      inputs.map(({ orgSlug }) => orgSlug),
      inputs.map(({ id }) => id),
      inputs.map(({ name }) => name),
      inputs.map(({ network }) => network),
      inputs.map(({ enableSubdomains }) => enableSubdomains),
    ],
  })
  return byPosition(inputs, rows).map((row, index) => row && insertedOf(row, inputs[index]!))
}

function insertedOf(row: InsertedRow, { id, name, network }: NewApp): InsertedApp {
  const app = row.numericId === null ? undefined : ({ ...row, id, name, network } as CreatedAppRow)
  return { caller: callerOf(row), orgFound: row.orgSlug !== null, app }
}

export interface AppList {
  caller: Caller
  orgFound: boolean
  total: number
  apps: AppSummary[]
}

/**
 * A page of an organization's apps, sorted by name. Undefined when the token is not valid. The statement returns one row
 * without an app for an empty organization.
 */
export async function listApps(
  db: Query,
  tokenHash: Buffer,
  orgSlug: string,
  after: string,
  limit: number | null,
): Promise<AppList | undefined> {
  const { rows } = await db.query<Caller & { orgFound: boolean; total: number; app: AppSummary | null }>({
    name: 'list-apps',
    text: `with ${callerCte},
           org as (
             select org.* from org, caller
             where slug = $2 and (token_org is null or token_org = org.id) and token_kind <> 'sandbox')
           select ${callerColumns}, org.id is not null as "orgFound",
             coalesce((select used from org_usage where org_id = org.id and quota = 'apps'), 0) as total, to_json(page) as app
           from caller left join org on true left join lateral (
             select ${shownColumns}, ${orgColumns}, ${countColumns}
             from app, ${counts}
             where app.org_id = org.id and app.state = 'active' and app.name > $3
             order by app.name limit $4) page on true
           order by page.name`,
    values: [tokenHash, orgSlug, after, limit],
  })
  const first = rows[0]
  if (!first) return undefined
  const apps = rows.map((row) => row.app).filter((app) => app !== null)
  return { caller: callerOf(first), orgFound: first.orgFound, total: first.total, apps }
}

/** Reads without a token, for the reconciler. */
export async function loadApp(db: Query, id: string): Promise<App | undefined> {
  const { rows } = await db.query<App>({
    name: 'load-app',
    text: `select ${columns} from app where id = $1`,
    values: [id],
  })
  return rows[0]
}

export async function runningMachines(tx: Tx, appId: string, states: readonly string[]): Promise<string[]> {
  const { rows } = await tx.query<{ id: string }>(
    `select id from machine where app_id = $1 and state = any($2) order by id`,
    [appId, states],
  )
  return rows.map((row) => row.id)
}

/** The tables with rows of an app, in the order of deletion. */
const ownedTables = [
  'machine',
  'volume',
  'attachment',
  'secret',
  'secret_key',
  'release',
  'ip',
  'network_policy',
  'host',
]

/** The number of rows that one step deletes, so that a large app does not block others with long transactions. */
const removalBatch = 500

/** Deletes a batch of an app's rows and returns how many; 0 means that none are left. */
export async function removeAppContents(db: Query, appId: string): Promise<number> {
  let removed = 0
  for (const table of ownedTables) {
    const { rowCount } = await db.query(
      `delete from ${table} where ctid = any(array(select ctid from ${table} where app_id = $1 limit ${removalBatch}))`,
      [appId],
    )
    removed += rowCount ?? 0
  }
  return removed
}
