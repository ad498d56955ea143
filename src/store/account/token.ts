import type pg from 'pg'
import type { Caller, Token, TokenKind } from '../../model/account/token.ts'
import type { ValidToken } from '../../model/account/token-check.ts'
import { type Micros, toMillis } from '../../model/time.ts'
import { type ChangeFeed, changeFeed } from '../change-feed.ts'
import type { Db, Query } from '../db.ts'

const valid = 'revoked_at is null and (expires_at is null or expires_at > now())'

/**
 * A CTE with the token whose hash is `$1`; it has no row when the token is unknown, expired or revoked. Statements start
 * from it, so that checking the token needs no extra round trip and a revocation takes effect at once. App tokens are
 * excluded.
 */
export const callerCte = `caller as (
  select id as token_id, kind as token_kind, org_id as token_org, sandbox as token_sandbox from token
  where hash = $1 and kind <> 'app' and ${valid})`

/** The tokens of a batch of requests. The CTE `asked` has a `token_hash` column; its other columns are passed on. */
export const callersCte = `caller as (
  select asked.*, id as token_id, kind as token_kind, org_id as token_org, sandbox as token_sandbox
  from asked join token on hash = token_hash and kind <> 'app' and ${valid})`

/**
 * The tokens of a batch of requests about apps; `asked` also has an `app_name`. An app token counts as a token of the
 * organization for its own app, and as one of a nonexistent organization for every other app.
 */
export const appCallersCte = `caller as (
  select asked.*, id as token_id, sandbox as token_sandbox, case kind when 'app' then 'org' else kind end as token_kind,
    case when kind = 'app' and app_id is distinct from (
      select app.id from app where app.name = app_name and app.state = 'active') then '' else org_id end as token_org
  from asked join token on hash = token_hash and ${valid})`

/** The token of one request about an app: `$1` is the hash of the token, `$2` the name of the app. */
export const appCallerCte = `asked as (select $1::bytea as token_hash, $2::text as app_name), ${appCallersCte}`

export const callerColumns = `token_id as "tokenId", token_kind as kind, token_org as "orgId", token_sandbox as sandbox`

/** Extracts the caller from a row of such a statement. */
export function callerOf(row: Caller): Caller {
  return { tokenId: row.tokenId, kind: row.kind, orgId: row.orgId, sandbox: row.sandbox }
}

export async function findCaller(db: Pick<Db, 'read'>, hash: Buffer): Promise<Caller | undefined> {
  const rows = await db.read<Caller>({
    name: 'find-caller',
    text: `with ${callerCte} select ${callerColumns} from caller`,
    values: [hash],
  })
  return rows[0]
}

/** Finds a valid token of any kind, including app tokens. */
export async function findToken(db: Pick<Db, 'read'>, hash: Buffer): Promise<Caller | undefined> {
  const rows = await db.read<Caller>({
    name: 'find-token',
    text: `select id as "tokenId", kind, org_id as "orgId", sandbox from token where hash = $1 and ${valid}`,
    values: [hash],
  })
  return rows[0]
}

/** The valid tokens among these hashes, with their limits. */
export async function listValidTokens(db: Pick<Db, 'read'>, hashes: Buffer[]): Promise<ValidToken[]> {
  return db.read<ValidToken>({
    name: 'list-valid-tokens',
    text: `select token.id as "tokenId", kind, token.org_id as "orgId", sandbox, hash, org.slug as "orgSlug",
             org.numeric_id as "orgNumericId", app.name as "appName", app.numeric_id as "appNumericId",
             token.created_at as "createdAt", expires_at as "expiresAt"
           from token left join org on org.id = token.org_id left join app on app.id = token.app_id
           where hash = any($1) and ${valid}`,
    values: [hashes],
  })
}

/**
 * The expiry of the valid tokens among these hashes (in base64), in milliseconds since the epoch; null: it does not expire.
 */
export async function listTokenExpiries(db: Pick<Db, 'read'>, hashes: string[]): Promise<Map<string, number | null>> {
  const rows = await db.read<TokenExpiry>({
    name: 'list-token-expiries',
    text: `select hash, expires_at as "expiresAt" from token where hash = any($1) and ${valid}`,
    values: [hashes.map((hash) => Buffer.from(hash, 'base64'))],
  })
  return byHash(rows)
}

export interface TokenExpiry extends Record<string, unknown> {
  hash: Buffer
  expiresAt: Micros | null
}

/** The expiry of each token in milliseconds, by its hash in base64. */
export function byHash(rows: TokenExpiry[]): Map<string, number | null> {
  return new Map(
    rows.map(({ hash, expiresAt }) => [hash.toString('base64'), expiresAt === null ? null : toMillis(expiresAt)]),
  )
}

/** Reports that a token was revoked, changed or deleted, without saying which. */
export function tokenFeed(config: () => pg.ClientConfig): ChangeFeed<true> {
  return changeFeed(config, 'token_change', (payload) => (payload === undefined ? undefined : true))
}

export interface NewToken {
  id: string
  hash: Buffer
  kind: TokenKind
  orgId: string | null
  sandbox: string | null
  appId?: string
  name: string
  expiresInSeconds: number | null
}

/** Also marks the organization's expired tokens, which then no longer count towards its quota. */
export async function insertToken(db: Query, token: NewToken): Promise<void> {
  await db.query('update token set expired = true where org_id = $1 and not expired and expires_at <= now()', [
    token.orgId,
  ])
  await db.query(
    `insert into token (id, hash, kind, org_id, sandbox, name, expires_at, app_id)
     values ($1, $2, $3, $4, $5, $6, now() + interval '1 second' * $7, $8)`,
    [
      token.id,
      token.hash,
      token.kind,
      token.orgId,
      token.sandbox,
      token.name,
      token.expiresInSeconds,
      token.appId ?? null,
    ],
  )
}

/**
 * Stores the configured root token in a fixed row, so that a changed configuration invalidates the old token. Returns the
 * id of another token with this hash, valid or not, instead of storing it: a tenant may hold its text.
 */
export async function putRootToken(db: Query, hash: Buffer): Promise<string | undefined> {
  const { rows } = await db.query<{ id: string }>(
    `with other as (select id from token where hash = $1 and id <> 'root'),
     changed as (
       insert into token (id, hash, kind, name) select 'root', $1, 'root', 'configuration' where not exists (select from other)
       on conflict (id) do update set hash = excluded.hash, expires_at = null, revoked_at = null
         where token.hash <> excluded.hash or token.revoked_at is not null or token.expires_at is not null)
     select id from other`,
    [hash],
  )
  return rows[0]?.id
}

/** Newest first. A null `orgId` lists all tokens, including root tokens; `appId` limits the list to tokens of this app. */
export async function listTokens(db: Query, orgId: string | null, appId?: string): Promise<Token[]> {
  const { rows } = await db.query<Token>(
    `select token.id, kind, org_id as "orgId", org.slug as "orgSlug", sandbox, token.name,
       token.created_at as "createdAt", expires_at as "expiresAt", revoked_at as "revokedAt"
     from token left join org on org.id = token.org_id
     where ($1::text is null or org_id = $1) and ($2::text is null or app_id = $2) and not inside
     order by token.created_at desc, token.id`,
    [orgId, appId ?? null],
  )
  return rows
}

/** Returns false when the caller's organization has no such token. Idempotent. */
export async function revokeToken(db: Query, caller: Caller, id: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `update token set revoked_at = coalesce(revoked_at, now()) where id = $1 and not inside
       and ($2::text is null or org_id = $2)`,
    [id, caller.orgId],
  )
  return rowCount === 1
}

export async function revokeAppTokens(tx: Query, appId: string): Promise<void> {
  await tx.query('update token set revoked_at = coalesce(revoked_at, now()) where app_id = $1', [appId])
}

/** Deletes the token with which a sandbox or machine calls the API about itself. */
export async function removeInsideToken(tx: Query, id: string): Promise<void> {
  await tx.query('delete from token where id = $1 and inside', [id])
}
