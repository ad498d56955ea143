import { type Caller, hashToken } from '../../model/account/token.ts'
import { findCaller } from '../../store/account/token.ts'
import type { Db } from '../../store/db.ts'
import type { Route } from '../routing/route.ts'

export type Verdict =
  | { allowed: true /** The token was the platform's, and goes no further. */; isOurs: boolean }
  | { allowed: false; why: string /** The token is good, and for other things. */; isForbidden?: true }
  | { allowed: false; unavailable: true }

export interface Access {
  /** At once where nobody has to be asked. */
  check(route: Route, authorization: string | undefined): Verdict | Promise<Verdict>
}

// A revocation counts from the end of this on.
const rememberMillis = 1_000
// Nobody can revoke a token while the database is away, but it may be away for this process alone.
const outageMillis = 60_000
// A flood of guesses must neither fill the memory nor hold up the others for long.
const maxRemembered = 10_000
const maxAsking = 500

interface Known {
  caller: Caller | undefined
  at: number
}

const open: Verdict = { allowed: true, isOurs: false }
const tokenPattern = /^(?:(?:bearer|flyv1)\s+)+(\S+)$/i
const ownForm = /^berth_[0-9A-Za-z]{43}$/

export function createAccess(db: Pick<Db, 'read'>, now: () => number = Date.now): Access {
  const known = new Map<string, Known>()
  const asking = new Map<string, Promise<Known | undefined>>()

  function find(token: string): Known | undefined | Promise<Known | undefined> {
    const found = known.get(token)
    if (found && now() - found.at < rememberMillis) return found
    const pending = asking.get(token)
    if (pending) return pending
    if (asking.size >= maxAsking) return undefined
    const answer = ask(token, found).finally(() => asking.delete(token))
    asking.set(token, answer)
    return answer
  }

  async function ask(token: string, found: Known | undefined): Promise<Known | undefined> {
    try {
      const asked = now()
      const fresh = { caller: await findCaller(db, hashToken(token)), at: asked }
      if (known.size >= maxRemembered) known.clear()
      known.set(token, fresh)
      return fresh
    } catch {
      return found?.caller && now() - found.at < outageMillis ? found : undefined
    }
  }

  function check(route: Route, authorization: string | undefined): Verdict | Promise<Verdict> {
    const token = authorization === undefined ? undefined : tokenPattern.exec(authorization)?.[1]
    if (token === undefined) {
      if (route.access === null) return open
      return { allowed: false, why: 'this address is not public: send the header "Authorization: Bearer <token>"' }
    }
    const found = find(token)
    return found instanceof Promise ? found.then((answer) => judge(route, token, answer)) : judge(route, token, found)
  }

  return { check }
}

function judge(route: Route, token: string, found: Known | undefined): Verdict {
  if (route.access === null) return { allowed: true, isOurs: found ? found.caller !== undefined : ownForm.test(token) }
  if (!found) return { allowed: false, unavailable: true }
  const { caller } = found
  if (!caller || !maySee(caller, route.access)) return { allowed: false, why: 'invalid token' }
  if (!route.access.adminsOnly || isAdmin(caller)) return { allowed: true, isOurs: true }
  return { allowed: false, why: 'this address is for root and org tokens only', isForbidden: true }
}

/** Those that may do everything in the organization. */
function isAdmin({ kind }: Caller): boolean {
  return kind === 'root' || kind === 'org'
}

function maySee(caller: Caller, { orgId, sandbox }: NonNullable<Route['access']>): boolean {
  return (caller.orgId === null || caller.orgId === orgId) && (caller.sandbox === null || caller.sandbox === sandbox)
}
