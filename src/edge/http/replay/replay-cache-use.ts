import { type AppRoute, mayReplay } from '../../routing/app.ts'
import type { AppTable } from '../../routing/app-table.ts'
import type { MachineSelector } from '../../routing/balancer.ts'
import type { SessionRule } from '../../routing/session-rule.ts'
import { fieldOf, type RequestHead } from '../message.ts'
import type { Replay } from './replay.ts'
import { type CacheDirective, type CachedReplay, expiryOf, type ReplayCache } from './replay-cache.ts'
import type { OngoingReplay } from './replay-request.ts'
import { findSession, type ReplaySession } from './replay-session.ts'

/** An app, and which of its machines. */
interface Destination {
  app: AppRoute
  selector: MachineSelector | undefined
}

interface CacheHit {
  /** The destination without the cache. */
  original: Destination
  remove(): void
}

/** Looks up and stores the replays of one request. */
export class ReplayCacheUse {
  private readonly cache: ReplayCache
  private readonly apps: AppTable
  private readonly head: RequestHead
  private status: '' | 'hit' | 'miss' | 'bypass' = ''
  private hit: CacheHit | undefined
  private session: ReplaySession | undefined

  constructor(cache: ReplayCache, apps: AppTable, head: RequestHead) {
    this.cache = cache
    this.apps = apps
    this.head = head
  }

  get statusField(): string {
    return this.status ? `Fly-Replay-Cache-Status: ${this.status}\r\n` : ''
  }

  /** Finds where an earlier request for the same path or session was replayed to. */
  find(
    app: AppRoute,
    selector: MachineSelector | undefined,
    sessions: SessionRule[] | undefined,
  ): Destination | undefined {
    const { cache, head } = this
    const original = { app, selector }
    const path = cache.find(app.id, head.host, head.target)
    if (path) return this.apply(path, { original, remove: () => cache.remove(app.id, path) })
    const session = sessions && findSession(sessions, app.id, head)
    if (!session) return undefined
    this.session = session
    const cached = cache.findSession(session.key)
    return cached && this.apply(cached, { original, remove: () => cache.removeSession(session.key) })
  }

  private apply(cached: CachedReplay, hit: CacheHit): Destination | undefined {
    const app = this.apps.get(cached.appId)
    if (!app || !mayReplay(hit.original.app, app)) return undefined
    if (cached.allowsBypass && fieldOf(this.head, 'fly-replay-cache-control') === 'skip') {
      this.status = 'bypass'
      return undefined
    }
    this.status = 'hit'
    this.hit = hit
    return { app, selector: cached.selector }
  }

  /** Removes the entry that this request used. */
  invalidate(): void {
    this.hit?.remove()
  }

  /** Removes the entry that this request used, and returns where the request goes instead. */
  dropHit(): Destination | undefined {
    const { hit } = this
    if (!hit) return undefined
    hit.remove()
    this.hit = undefined
    this.status = ''
    return hit.original
  }

  /** Caches a replay if the response or a session rule asks for it. */
  store(
    ongoing: OngoingReplay,
    target: { appId: string; selector: MachineSelector },
    directive: CacheDirective | undefined,
  ): void {
    if (directive?.invalidates) this.invalidate()
    this.hit = undefined
    // A request that bypasses the cache does not change it either.
    if (this.status === 'bypass') return
    this.status = this.put(ongoing, target, directive) ? 'miss' : ''
  }

  private put(
    { replay, app }: OngoingReplay,
    target: { appId: string; selector: MachineSelector },
    directive: CacheDirective | undefined,
  ): boolean {
    const { cache, session } = this
    if (directive?.prefix !== undefined) {
      const { prefix, seconds, allowsBypass } = directive
      const entry = { ...target, allowsBypass, expiresAt: expiryOf(seconds) }
      cache.put(app.id, { ...entry, prefix, host: this.head.host })
      return true
    }
    if (!session || session.appId !== app.id || directive?.invalidates || !isCacheable(replay)) return false
    const { seconds, allowsBypass } = session.rule
    cache.putSession(session.key, { ...target, allowsBypass, expiresAt: expiryOf(seconds) })
    return true
  }
}

/** False for replays with options that concern a single request. */
function isCacheable({ state, transform, timeoutMs, fallback }: Replay): boolean {
  return state === undefined && !transform && timeoutMs === undefined && !fallback
}
