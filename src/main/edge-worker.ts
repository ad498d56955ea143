import { readFileSync } from 'node:fs'
import { flushCompileCache } from 'node:module'
import type { Socket } from 'node:net'
import type { Logger } from 'pino'
import { createAccess } from '../edge/access.ts'
import { type Feed, startFeed } from '../edge/feed.ts'
import { createReach } from '../edge/reach.ts'
import { RouteTable } from '../edge/route.ts'
import { createEdgeServer, type EdgeServer, idMaker } from '../edge/server.ts'
import type { EdgeSettings } from '../edge/settings.ts'
import { UpstreamPool } from '../edge/upstream.ts'
import { openDatabase } from '../store/db.ts'
import { wakeSandbox } from '../store/route.ts'
import { type EdgeOrder, type EdgeReport, openEdgeLog, readEdgeSettings } from './edge-settings.ts'

// Routes are loaded within this or the first requests are told to come back.
const fillMillis = 2_000

/** Connections come from the process that listens; without it there is nothing to do. */
async function runWorker(file: string): Promise<void> {
  const settings = readEdgeSettings(file)
  const server = serve(settings, openEdgeLog(settings))
  process.once('disconnect', () => process.exit(1))
  process.on('message', (order: EdgeOrder, socket?: Socket) => {
    if ('connection' in order) {
      report({ taken: order.connection })
      if (socket) server.accept(socket) // it may have been closed on its way
    } else server.drain(order.drainMillis).then(() => process.exit(0))
  })
  await Promise.race([server.filled, new Promise((resolve) => setTimeout(resolve, fillMillis))])
  report({ ready: true })
}

function report(what: EdgeReport): void {
  process.send!(what, undefined, undefined, () => undefined)
}

function serve(settings: EdgeSettings, log: Logger): EdgeServer & Pick<Feed, 'filled'> {
  const tls = settings.tls && {
    cert: readFileSync(settings.tls.certFile, 'utf8'),
    key: readFileSync(settings.tls.keyFile, 'utf8'),
  }
  flushCompileCache() // which only root may write
  if (settings.uid !== null) becomeUser(settings.uid)
  const db = openDatabase({ ...settings.database, max: 3, query_timeout: 5_000 })
  const table = new RouteTable()
  const pool = new UpstreamPool()
  const onError = (err: unknown) => log.error({ err }, 'a request failed')
  const feed = startFeed({
    ...settings,
    table,
    db,
    databaseConfig: settings.database,
    onChange: () => {},
    onError: (err) => log.warn({ err }, 'goes on with the routes of before'),
  })
  const wake = (route: { id: string }) => db.transaction((tx) => wakeSandbox(tx, route.id))
  const server = createEdgeServer({
    parts: {
      table,
      pool,
      access: createAccess(db),
      reach: createReach({ table, pool, wake }),
      domains: [settings.sandboxDomain, settings.domain],
      nextId: idMaker(),
      onError,
    },
    tls: tls ?? undefined,
    maxConnections: settings.maxConnections,
  })
  return { ...server, filled: feed.filled }
}

/** Everything that needs more has been read by now. */
function becomeUser(uid: number): void {
  process.setgroups!([uid])
  process.setgid!(uid)
  process.setuid!(uid)
}

if (import.meta.main) await runWorker(process.argv[2]!)
