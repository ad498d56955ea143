// Keeps the table of routes as the state database has it. While the database is away the table stays as it was.
import type pg from 'pg'
import { listAppRoutes } from '../../store/app/route.ts'
import type { Database } from '../../store/db.ts'
import { listen, routeChannel } from '../../store/listen.ts'
import { listClusterRoutes } from '../../store/postgres/route.ts'
import { listSandboxRoutes, type SandboxRoute } from '../../store/sandbox/route.ts'
import type { Names } from '../dns/server.ts'
import type { BoxPlaces } from '../settings.ts'
import { type DatabaseSettings, databaseRoutesOf } from '../tcp/database.ts'
import { findPlace } from '../types.ts'
import { type AppOptions, appRouteOf } from './app.ts'
import type { Route, RouteTable } from './route.ts'

export interface FeedOptions extends AppOptions {
  table: RouteTable
  db: Database
  databaseConfig: pg.ClientConfig
  /** Kept by the same notifications as the routes of apps. */
  names?: Pick<Names, 'catchUp' | 'fillDatabases'> | undefined
  databases?: DatabaseSettings | null
  sandboxDomain: string
  boxes: BoxPlaces
  onChange(): void
  onError(error: unknown): void
}

export interface Feed {
  /** Resolves when the table has been filled once. */
  filled: Promise<void>
  close(): Promise<void>
}

// Nothing is heard while the connection is made anew, and a connection can be dead without being closed.
const reloadMillis = 10_000
const retryMillis = 500

export function startFeed(options: FeedOptions): Feed {
  const filled = Promise.withResolvers<void>()
  let changed = { sandbox: new Set<string>(), app: new Set<string>() }
  let isWhole = false
  /** Clusters are few: all of them are asked for when one of them, or who may use it, changes. */
  let hasDatabases = false
  let running: Promise<void> | undefined
  let timer: NodeJS.Timeout | undefined
  let closed = false

  /** One look at a time; what is told meanwhile is asked for by the next. */
  async function catchUp(): Promise<void> {
    while (!closed && (!isWhole || !hasDatabases || changed.sandbox.size + changed.app.size > 0)) {
      const ids = isWhole ? { sandbox: [...changed.sandbox], app: [...changed.app] } : { sandbox: null, app: null }
      const isStale = !isWhole || !hasDatabases
      isWhole = true
      hasDatabases = true
      changed = { sandbox: new Set(), app: new Set() }
      try {
        // The table counts as filled with the sandboxes.
        await catchUpApps(options, ids.app)
        await options.names?.catchUp(options.db, ids.app)
        if (isStale) await catchUpDatabases(options)
        await catchUpSandboxes(options, ids.sandbox)
      } catch (error) {
        isWhole = false
        options.onError(error)
        return schedule(retryMillis)
      }
      if (ids.app === null) filled.resolve()
      options.onChange()
    }
    schedule(reloadMillis)
  }

  function wake(): void {
    running ??= catchUp().finally(() => {
      running = undefined
    })
  }

  function schedule(millis: number): void {
    clearTimeout(timer)
    if (!closed) timer = setTimeout(reload, millis)
  }

  function reload(): void {
    isWhole = false
    wake()
  }

  const listener = listen(options.databaseConfig, routeChannel, (payload) => {
    const [kind, id] = payload?.split(' ') ?? []
    if ((kind === 'sandbox' || kind === 'app') && id) changed[kind].add(id)
    else if (kind === 'cluster') hasDatabases = false
    else isWhole = false
    wake()
  })
  reload()
  return {
    filled: filled.promise,
    async close() {
      closed = true
      clearTimeout(timer)
      await Promise.all([listener.close(), running])
    },
  }
}

async function catchUpSandboxes(options: FeedOptions, ids: string[] | null): Promise<void> {
  if (ids?.length === 0) return
  const routes = (await listSandboxRoutes(options.db, ids)).map((row) => routeOf(row, options))
  if (ids) options.table.change(ids, routes)
  else options.table.fill(routes)
}

async function catchUpDatabases({ db, table, names, databases }: FeedOptions): Promise<void> {
  if (!databases) return
  const clusters = await listClusterRoutes(db)
  const routes = clusters.flatMap((cluster) => databaseRoutesOf(cluster, databases.homeNumber))
  table.databases.fill(routes)
  names?.fillDatabases(routes)
}

async function catchUpApps(options: FeedOptions, ids: string[] | null): Promise<void> {
  if (ids?.length === 0) return
  const { apps } = options.table
  const rows = await listAppRoutes(options.db, ids)
  const routes = rows.map((row) => appRouteOf(row, options, apps.get(row.id)))
  if (ids) apps.change(ids, routes)
  else apps.fill(routes)
}

/** The port of a sandbox without a service that claims one. */
const defaultPort = 8080

export function routeOf(row: SandboxRoute, options: Pick<FeedOptions, 'sandboxDomain' | 'boxes'>): Route {
  const place = findPlace(options.boxes, row.slot)
  const port = row.httpPort ?? defaultPort
  return {
    kind: 'sandbox',
    id: row.id,
    host: `${row.name}.${options.sandboxDomain}`,
    access: row.urlAuth === 'public' ? null : accessOf(row),
    ...place,
    port,
    key: `${row.id} ${place.address}:${port}`,
    isCold: row.state === 'cold',
    service: row.service === null ? undefined : serviceOf(row),
  }
}

function accessOf({ orgId, name, privateAccess }: SandboxRoute): Route['access'] {
  return { orgId, sandbox: name, adminsOnly: privateAccess === 'admins' }
}

function serviceOf({ service, wanted, health, readyAtMs, failure }: SandboxRoute): Route['service'] {
  return {
    name: service!,
    wanted: wanted === true,
    failure,
    health: health && 'http' in health.check ? health.check.http : null,
    ...(health && 'command' in health.check && { readyAtMs }),
  }
}
