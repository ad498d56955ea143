import { type Caller, hashToken } from '../../model/account/token.ts'
import { findShownToken } from '../../store/account/shown-token.ts'
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
    const token = authorization === undefined ? undefined : tokenPattern.exec(authorization)?.[1]
    if (token === undefined) {
      if (route.access === null) return publicAccess
      return { allowed: false, reason: 'this address is not public: send the header "Authorization: Bearer <token>"' }
    }
    const found = find(token)
    return found instanceof Promise ? found.then((caller) => judge(route, token, caller)) : judge(route, token, found)
  }

  return { check }
}

function judge(route: SandboxRoute, token: string, found: CachedCaller | undefined): Verdict {
  if (route.access === null) {
    return { allowed: true, isPlatformToken: found ? found.caller !== undefined : platformTokenPattern.test(token) }
  }
  if (!found) return { allowed: false, unavailable: true }
  const { caller } = found
  if (!caller || !canSee(caller, route.access)) return { allowed: false, reason: 'invalid token' }
  if (!route.access.adminsOnly || isAdmin(caller)) return { allowed: true, isPlatformToken: true }
  return { allowed: false, reason: 'this address is for root and org tokens only', isForbidden: true }
}

function isAdmin({ kind }: Caller): boolean {
  return kind === 'root' || kind === 'org'
}

function canSee(caller: Caller, { orgId, sandbox }: NonNullable<SandboxRoute['access']>): boolean {
  return (caller.orgId === null || caller.orgId === orgId) && (caller.sandbox === null || caller.sandbox === sandbox)
}
