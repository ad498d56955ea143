// Replays that a program asked to be repeated for a while, so that further requests need not pass through it first. Each
// worker has its own.
import { isBelow, parsePathPrefix } from '../../model/path-prefix.ts'
import type { Wish } from './balance.ts'

/** What an answer says about the replays of requests like this one. */
export interface CacheOrder {
  invalidates: boolean
  /** Requests whose path begins so; undefined: nothing is to be kept. */
  prefix: string | undefined
  seconds: number
  allowsBypass: boolean
}

export interface CachedReplay {
  /** Where they go: the id of an app, and which of its machines. */
  appId: string
  wish: Wish
  allowsBypass: boolean
  until: number
}

export interface CachedPath extends CachedReplay {
  prefix: string
  host: string
}

const leastSeconds = 10
const mostSeconds = 86_400
const mostOfApp = 200
const mostApps = 5_000
const mostSessions = 20_000

/** `[host]/path/*` for so many seconds, or `invalidate`. */
export function readCacheOrder(
  text: string | undefined,
  seconds: string | undefined,
  bypass: string | undefined,
  host: string,
): CacheOrder | undefined {
  if (text === undefined) return undefined
  const order = { prefix: undefined, seconds: 0, allowsBypass: /^(?:yes|true)$/i.test(bypass ?? '') }
  if (text.trim().toLowerCase() === 'invalidate') return { ...order, invalidates: true }
  const found = parsePathPrefix(text.trim())
  const lasts = Number(seconds)
  const isOurs = found?.host === '' || found?.host === host
  if (!found || !isOurs || !Number.isInteger(lasts) || lasts < leastSeconds) return { ...order, invalidates: false }
  return { ...order, invalidates: false, prefix: found.path, seconds: lasts }
}

/** When a replay is forgotten that is to be repeated for so long. */
export function endOf(seconds: number): number {
  return Date.now() + Math.min(seconds, mostSeconds) * 1000
}

export class ReplayCache {
  /** By the app through which requests came before. */
  private readonly byApp = new Map<string, CachedPath[]>()
  /** In the order in which they were kept. */
  private readonly bySession = new Map<string, CachedReplay>()

  /** The longest path that fits. */
  find(appId: string, host: string, target: string, now = Date.now()): CachedPath | undefined {
    const entries = this.byApp.get(appId)
    if (!entries) return undefined
    let best: CachedPath | undefined
    for (const entry of entries) {
      if (entry.host !== host || entry.until <= now || !isBelow(entry.prefix, target)) continue
      if (!best || entry.prefix.length > best.prefix.length) best = entry
    }
    return best
  }

  put(appId: string, entry: CachedPath, now = Date.now()): void {
    const others = this.byApp
      .get(appId)
      ?.filter(({ prefix, host, until }) => until > now && (prefix !== entry.prefix || host !== entry.host))
    if (!others && this.byApp.size >= mostApps) this.byApp.clear()
    this.byApp.set(appId, [...(others ?? []).slice(-(mostOfApp - 1)), entry])
  }

  remove(appId: string, entry: CachedPath): void {
    const rest = this.byApp.get(appId)?.filter((each) => each !== entry) ?? []
    if (rest.length === 0) this.byApp.delete(appId)
    else this.byApp.set(appId, rest)
  }

  findSession(key: string, now = Date.now()): CachedReplay | undefined {
    const entry = this.bySession.get(key)
    return entry && entry.until > now ? entry : undefined
  }

  putSession(key: string, entry: CachedReplay): void {
    this.bySession.delete(key)
    const [oldest] = this.bySession.keys()
    if (oldest !== undefined && this.bySession.size >= mostSessions) this.bySession.delete(oldest)
    this.bySession.set(key, entry)
  }

  removeSession(key: string): void {
    this.bySession.delete(key)
  }
}
