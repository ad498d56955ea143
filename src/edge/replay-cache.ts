// Replays that a program asked to be repeated for a while, so that further requests need not pass through it first. Each
// worker has its own.
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
  prefix: string
  host: string
  /** Where they go: the id of an app, and which of its machines. */
  appId: string
  wish: Wish
  allowsBypass: boolean
  until: number
}

const leastSeconds = 10
const mostSeconds = 86_400
const mostOfApp = 200
const mostApps = 5_000
const pattern = /^(?<host>[a-z0-9.-]*)(?<path>\/[\x21-\x7e]*)$/i

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
  const found = pattern.exec(text.trim())?.groups
  const lasts = Number(seconds)
  const isOurs = found?.host === '' || found?.host?.toLowerCase() === host
  if (!found || !isOurs || !Number.isInteger(lasts) || lasts < leastSeconds) return { ...order, invalidates: false }
  const prefix = found.path!.replace(/\*$/, '')
  return { ...order, invalidates: false, prefix, seconds: Math.min(lasts, mostSeconds) }
}

export class ReplayCache {
  /** By the app through which requests came before. */
  private readonly byApp = new Map<string, CachedReplay[]>()

  /** The longest path that fits. */
  find(appId: string, host: string, target: string, now = Date.now()): CachedReplay | undefined {
    const entries = this.byApp.get(appId)
    if (!entries) return undefined
    const path = target.split('?', 1)[0]!
    let best: CachedReplay | undefined
    for (const entry of entries) {
      if (entry.host !== host || entry.until <= now || !fits(entry.prefix, path)) continue
      if (!best || entry.prefix.length > best.prefix.length) best = entry
    }
    return best
  }

  put(appId: string, entry: CachedReplay, now = Date.now()): void {
    const others = this.byApp
      .get(appId)
      ?.filter(({ prefix, host, until }) => until > now && (prefix !== entry.prefix || host !== entry.host))
    if (!others && this.byApp.size >= mostApps) this.byApp.clear()
    this.byApp.set(appId, [...(others ?? []).slice(-(mostOfApp - 1)), entry])
  }

  remove(appId: string, entry: CachedReplay): void {
    const rest = this.byApp.get(appId)?.filter((each) => each !== entry) ?? []
    if (rest.length === 0) this.byApp.delete(appId)
    else this.byApp.set(appId, rest)
  }
}

function fits(prefix: string, path: string): boolean {
  return path.startsWith(prefix) || `${path}/` === prefix
}
