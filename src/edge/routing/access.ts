import { readMacaroon } from '../../model/account/macaroon.ts'
import { OpenSessions } from '../../model/account/open-sessions.ts'
import { type Caller, hashToken } from '../../model/account/token.ts'
import { findShownToken, listShownTokenExpiries } from '../../store/account/shown-token.ts'
import type { Db } from '../../store/db.ts'
import type { SandboxRoute } from './sandbox.ts'

export type Verdict =
  | {
      allowed: true /** The token is the platform's, so it is not forwarded to the sandbox. */
      isPlatformToken: boolean
    }
  | { allowed: false; reason: string /** The token is valid but may not use this sandbox. */; isForbidden?: true }
  | { allowed: false; unavailable: true }

/** Decides who may send requests to a sandbox. */
export interface Access {
  /** Synchronous when the answer is cached or no token is needed. */
  check(route: SandboxRoute, authorization: string | undefined): Verdict | Promise<Verdict>
  /**
   * Calls `close` when the token of a request is revoked or expires. To be called before `check`. Returns the function to
   * call when the request has ended.
   */
  hold(authorization: string | undefined, close: () => void): () => void
  /** Checks the tokens of all requests in progress again. */
  recheck(): void
}

// A revoked token stops working after this time at the latest.
const cacheMs = 1_000
// While the database is unreachable a cached token stays valid for this long, as it may be unreachable only from here.
const outageCacheMs = 60_000
// These bound the memory and the queries that a client guessing tokens can cause.
const maxCached = 10_000
const maxLookups = 500

interface CachedCaller {
  caller: Caller | undefined
  at: number
}

const publicAccess: Verdict = { allowed: true, isPlatformToken: false }
const tokenPattern = /^(?:(?:bearer|flyv1)[\t ]+)+([\x21-\x7e]+)$/i
const platformTokenPattern = /^berth_[0-9A-Za-z]{43}$/

export function createAccess(db: Pick<Db, 'read'>, now: () => number = Date.now): Access {
  const cache = new Map<string, CachedCaller>()
  const lookups = new Map<string, Promise<CachedCaller | undefined>>()
  const openSessions = new OpenSessions({ listValid: (tokens) => listValid(db, tokens) })

  /** Undefined when the token cannot be checked now. */
  function find(token: string): CachedCaller | undefined | Promise<CachedCaller | undefined> {
    const cached = cache.get(token)
    if (cached && now() - cached.at < cacheMs) return cached
    const pending = lookups.get(token)
    if (pending) return pending
    if (lookups.size >= maxLookups) return undefined
    const lookup = lookUp(token, cached).finally(() => lookups.delete(token))
    lookups.set(token, lookup)
    return lookup
  }

  async function lookUp(token: string, cached: CachedCaller | undefined): Promise<CachedCaller | undefined> {
    try {
      const startedAt = now()
      const fresh = { caller: await findShownToken(db, hashToken(token)), at: startedAt }
      if (cache.size >= maxCached) cache.clear()
      cache.set(token, fresh)
      return fresh
    } catch {
      return cached?.caller && now() - cached.at < outageCacheMs ? cached : undefined
    }
  }

  function check(route: SandboxRoute, authorization: string | undefined): Verdict | Promise<Verdict> {
    const token = tokenOf(authorization)
    if (token === undefined) {
      if (route.access === null) return publicAccess
      return { allowed: false, reason: 'this address is not public: send the header "Authorization: Bearer <token>"' }
    }
    const found = find(token)
    return found instanceof Promise ? found.then((caller) => judge(route, token, caller)) : judge(route, token, found)
  }

  function hold(authorization: string | undefined, close: () => void): () => void {
    const token = tokenOf(authorization)
    return token === undefined ? () => {} : openSessions.add(token, close)
  }

  function recheck(): void {
    cache.clear()
    openSessions.check()
  }

  return { check, hold, recheck }
}

export function tokenOf(authorization: string | undefined): string | undefined {
  return authorization === undefined ? undefined : tokenPattern.exec(authorization)?.[1]
}

async function listValid(db: Pick<Db, 'read'>, tokens: string[]): Promise<Map<string, number | null>> {
  const hashes = new Map(tokens.map((token) => [token, hashToken(token).toString('base64')]))
  const expiries = await listShownTokenExpiries(db, [...hashes.values()])
  const valid = tokens.filter((token) => expiries.has(hashes.get(token)!))
  return new Map(valid.map((token) => [token, expiries.get(hashes.get(token)!) ?? null]))
}

function judge(route: SandboxRoute, token: string, found: CachedCaller | undefined): Verdict {
  if (route.access === null) {
    const isKnown = found ? found.caller !== undefined : platformTokenPattern.test(token)
    return { allowed: true, isPlatformToken: isKnown || hasMacaroon(token) }
  }
  if (!found) return { allowed: false, unavailable: true }
  const { caller } = found
  if (!caller || !canSee(caller, route.access)) return { allowed: false, reason: 'invalid token' }
  if (!route.access.adminsOnly || isAdmin(caller)) return { allowed: true, isPlatformToken: true }
  return { allowed: false, reason: 'this address is for root and org tokens only', isForbidden: true }
}

/** Tokens with appended caveats cannot be verified here. Programs in sandboxes must not get them either. */
function hasMacaroon(tokens: string): boolean {
  return tokens.split(',').some((token) => readMacaroon(token) !== undefined)
}

function isAdmin({ kind }: Caller): boolean {
  return kind === 'root' || kind === 'org'
}

function canSee(caller: Caller, { orgId, sandbox }: NonNullable<SandboxRoute['access']>): boolean {
  return (caller.orgId === null || caller.orgId === orgId) && (caller.sandbox === null || caller.sandbox === sandbox)
}
