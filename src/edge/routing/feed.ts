// Keeps the route table in step with the state database. While the database is unreachable the table stays as it was.
import type pg from 'pg'
import { listAppRoutes } from '../../store/app/route.ts'
import type { Database, Query } from '../../store/db.ts'
import { listen, routeChannel } from '../../store/listen.ts'
import { listClusterRoutes } from '../../store/postgres/route.ts'
import { listSandboxRoutes } from '../../store/sandbox/route.ts'
import { type AppOptions, createAppRoute } from './app.ts'
import { createDatabaseRoutes, type DatabaseRoute } from './database.ts'
import { createSandboxRoute } from './sandbox.ts'
import type { RouteTable } from './table.ts'

export interface FeedOptions extends AppOptions {
  table: RouteTable
  db: Database
  databaseConfig: pg.ClientConfig
  /** The names of private networks, which change together with the routes. */
  names?: NameSink | undefined
  /** Absent when machines cannot reach clusters. */
  databases?: { homeNumber: number } | null
  sandboxDomain: string
  onChange(): void
  /** A token was revoked, changed or deleted. */
  onTokenChange(): void
  onError(error: unknown): void
}

interface NameSink {
  /** Reloads the names of these apps; null reloads all. */
  reload(db: Query, appIds: string[] | null): Promise<void>
  fillDatabases(routes: DatabaseRoute[]): void
}

export interface Feed {
  /** Resolves when the table has been filled for the first time. */
  filled: Promise<void>
  close(): Promise<void>
}

// Notifications are lost while the connection is re-established, and a dead connection may go unnoticed.
const reloadIntervalMs = 10_000
const retryDelayMs = 500

/** The payload of a notification that is not about routes. */
const tokenPayload = 'token'

/** The routes to reload; null means all of them. */
interface StaleRoutes {
  sandboxIds: string[] | null
  appIds: string[] | null
  databases: boolean
}

/** Collects what changed since the last reload. */
class ChangeSet {
  private sandboxIds = new Set<string>()
  private appIds = new Set<string>()
  private isAllStale = true
  /** Clusters are few, so all of them are reloaded when one changes. */
  private areDatabasesStale = true

  addAll(): void {
    this.isAllStale = true
  }

  addNotification(payload: string | undefined): void {
    const [kind, id] = payload?.split(' ') ?? []
    if (kind === 'sandbox' && id) this.sandboxIds.add(id)
    else if (kind === 'app' && id) this.appIds.add(id)
    else if (kind === 'cluster') this.areDatabasesStale = true
    else this.isAllStale = true
  }

  /** Empties the set. Undefined when nothing changed. */
  take(): StaleRoutes | undefined {
    const databases = this.isAllStale || this.areDatabasesStale
    if (!databases && this.sandboxIds.size + this.appIds.size === 0) return undefined
    const stale = this.isAllStale
      ? { sandboxIds: null, appIds: null, databases }
      : { sandboxIds: [...this.sandboxIds], appIds: [...this.appIds], databases }
    this.isAllStale = false
    this.areDatabasesStale = false
    this.sandboxIds = new Set()
    this.appIds = new Set()
    return stale
  }
}

export function startFeed(options: FeedOptions): Feed {
  const filled = Promise.withResolvers<void>()
  const changes = new ChangeSet()
  let running: Promise<void> | undefined
  let timer: NodeJS.Timeout | undefined
  let isClosed = false

  /** Only one runs at a time; changes that arrive meanwhile are loaded by its next round. */
  async function catchUp(): Promise<void> {
    for (let stale = takeChanges(); stale; stale = takeChanges()) {
      try {
        await reload(options, stale)
      } catch (error) {
        changes.addAll()
        options.onError(error)
        return schedule(retryDelayMs)
      }
      if (stale.appIds === null) filled.resolve()
      options.onChange()
    }
    schedule(reloadIntervalMs)
  }

  function takeChanges(): StaleRoutes | undefined {
    return isClosed ? undefined : changes.take()
  }

  function wake(): void {
    running ??= catchUp().finally(() => {
      running = undefined
    })
  }

  function schedule(delayMs: number): void {
    clearTimeout(timer)
    if (!isClosed) timer = setTimeout(reloadAll, delayMs)
  }

  function reloadAll(): void {
    changes.addAll()
    wake()
  }

  const listener = listen(options.databaseConfig, routeChannel, (payload) => {
    if (payload === undefined || payload === tokenPayload) options.onTokenChange()
    if (payload === tokenPayload) return
    changes.addNotification(payload)
    wake()
  })
  reloadAll()
  return {
    filled: filled.promise,
    async close() {
      isClosed = true
      clearTimeout(timer)
      await Promise.all([listener.close(), running])
    },
  }
}

/** Sandboxes come last because the table counts as filled once they are in it. */
async function reload(options: FeedOptions, { sandboxIds, appIds, databases }: StaleRoutes): Promise<void> {
  await reloadApps(options, appIds)
  await options.names?.reload(options.db, appIds)
  if (databases) await reloadDatabases(options)
  await reloadSandboxes(options, sandboxIds)
}

async function reloadSandboxes(options: FeedOptions, ids: string[] | null): Promise<void> {
  if (ids?.length === 0) return
  const routes = (await listSandboxRoutes(options.db, ids)).map((row) => createSandboxRoute(row, options))
  if (ids) options.table.change(ids, routes)
  else options.table.fill(routes)
}

async function reloadDatabases({ db, table, names, databases }: FeedOptions): Promise<void> {
  if (!databases) return
  const clusters = await listClusterRoutes(db)
  const routes = clusters.flatMap((cluster) => createDatabaseRoutes(cluster, databases.homeNumber))
  table.databases.fill(routes)
  names?.fillDatabases(routes)
}

async function reloadApps(options: FeedOptions, ids: string[] | null): Promise<void> {
  if (ids?.length === 0) return
  const { apps } = options.table
  const rows = await listAppRoutes(options.db, ids)
  const routes = rows.map((row) => createAppRoute(row, options, apps.get(row.id)))
  if (ids) apps.change(ids, routes)
  else apps.fill(routes)
}
