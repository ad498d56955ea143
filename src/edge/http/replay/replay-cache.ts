// Caches replays for a while, so that further requests skip the machine that asked for the replay. Each worker has its own
// cache.
import { isBelow, parsePathPrefix } from '../../../model/path-prefix.ts'
import type { MachineSelector } from '../../routing/balancer.ts'
import { trimSpace } from '../syntax.ts'

/** The caching instructions of a response that asks for a replay. */
export interface CacheDirective {
  invalidates: boolean
  /** The path prefix of the requests to replay alike; undefined when nothing is to be cached. */
  prefix: string | undefined
  seconds: number
  allowsBypass: boolean
}

/** The app and the machines that requests are replayed to. */
export interface CachedReplay {
  appId: string
  selector: MachineSelector
  allowsBypass: boolean
  expiresAt: number
}

export interface CachedPath extends CachedReplay {
  prefix: string
  host: string
}

const minSeconds = 10
const maxSeconds = 86_400
const maxPathsPerApp = 200
const maxApps = 5_000
const maxSessions = 20_000

/** Parses `[host]/path/*` with a time to live, or `invalidate`. */
export function parseCacheDirective(
  text: string | undefined,
  ttlSeconds: string | undefined,
  bypass: string | undefined,
  host: string,
): CacheDirective | undefined {
  if (text === undefined) return undefined
  const none = { prefix: undefined, seconds: 0, allowsBypass: /^(?:yes|true)$/i.test(bypass ?? '') }
  if (trimSpace(text).toLowerCase() === 'invalidate') return { ...none, invalidates: true }
  const found = parsePathPrefix(trimSpace(text))
  const seconds = /^\d{1,15}$/.test(ttlSeconds ?? '') ? Number(ttlSeconds) : 0
  const isOwnHost = found?.host === '' || found?.host === host
  if (!found || !isOwnHost || seconds < minSeconds) return { ...none, invalidates: false }
  return { ...none, invalidates: false, prefix: found.path, seconds }
}

export function expiryOf(seconds: number): number {
  return Date.now() + Math.min(seconds, maxSeconds) * 1000
}

export class ReplayCache {
  /** Keyed by the id of the app that the requests were sent to. */
  private readonly byApp = new Map<string, CachedPath[]>()
  /** The map keeps insertion order, so that the oldest entry is removed first. */
  private readonly bySession = new Map<string, CachedReplay>()

  /** Finds the entry with the longest matching path. */
  find(appId: string, host: string, target: string, now = Date.now()): CachedPath | undefined {
    const entries = this.byApp.get(appId)
    if (!entries) return undefined
    let best: CachedPath | undefined
    for (const entry of entries) {
      if (entry.host !== host || entry.expiresAt <= now || !isBelow(entry.prefix, target)) continue
      if (!best || entry.prefix.length > best.prefix.length) best = entry
    }
    return best
  }

  put(appId: string, entry: CachedPath, now = Date.now()): void {
    const others = this.byApp
      .get(appId)
      ?.filter(({ prefix, host, expiresAt }) => expiresAt > now && (prefix !== entry.prefix || host !== entry.host))
    if (!others && this.byApp.size >= maxApps) this.byApp.clear()
    this.byApp.set(appId, [...(others ?? []).slice(-(maxPathsPerApp - 1)), entry])
  }

  remove(appId: string, entry: CachedPath): void {
    const rest = this.byApp.get(appId)?.filter((each) => each !== entry) ?? []
    if (rest.length === 0) this.byApp.delete(appId)
    else this.byApp.set(appId, rest)
  }

  findSession(key: string, now = Date.now()): CachedReplay | undefined {
    const entry = this.bySession.get(key)
    return entry && entry.expiresAt > now ? entry : undefined
  }

  putSession(key: string, entry: CachedReplay): void {
    this.bySession.delete(key)
    const [oldest] = this.bySession.keys()
    if (oldest !== undefined && this.bySession.size >= maxSessions) this.bySession.delete(oldest)
    this.bySession.set(key, entry)
  }

  removeSession(key: string): void {
    this.bySession.delete(key)
  }
}
