import type { Socket as PacketSocket } from 'node:dgram'
import { readFileSync } from 'node:fs'
import { flushCompileCache } from 'node:module'
import type { Socket } from 'node:net'
import type { Logger } from 'pino'
import { ensureResolverAddress } from '../../drivers/network/private.ts'
import { type Names, startNames } from '../../edge/dns/server.ts'
import { createAccess } from '../../edge/http/access.ts'
import { UpstreamPool } from '../../edge/http/upstream.ts'
import { type AppOptions, listensOf } from '../../edge/routing/app.ts'
import { startAutostop } from '../../edge/routing/autostop.ts'
import { Balance } from '../../edge/routing/balance.ts'
import { type Feed, startFeed } from '../../edge/routing/feed.ts'
import type { Permits } from '../../edge/routing/permit.ts'
import { createReach } from '../../edge/routing/reach.ts'
import { ReplayCache } from '../../edge/routing/replay-cache.ts'
import { RouteTable } from '../../edge/routing/route.ts'
import { createEdgeServer, type EdgeServer, idMaker } from '../../edge/server.ts'
import type { EdgeSettings } from '../../edge/settings.ts'
import { apiListen } from '../../edge/tcp/api.ts'
import { Certificates } from '../../edge/tls/certificate.ts'
import { createDatagrams } from '../../edge/udp/datagram.ts'
import { wakeMachine } from '../../store/app/route.ts'
import { openDatabase } from '../../store/db.ts'
import { wakeSandbox } from '../../store/sandbox/route.ts'
import { type EdgeOrder, type EdgeReport, openEdgeLog, readEdgeSettings } from './settings.ts'

// Routes are loaded within this or the first requests are told to come back.
const fillMillis = 2_000
/** Of bodies that may have to be sent again. */
const maxKeptBytes = 128 * 1_048_576
/** Of answers that are made smaller at the same time; beyond them they go out as they are. */
const maxEncoders = 500

/** Connections come from the process that listens; without it there is nothing to do. */
async function runWorker(file: string, index: number): Promise<void> {
  const settings = readEdgeSettings(file)
  const log = openEdgeLog(settings)
  const names = await openNames(settings, log)
  const permits = openPermits()
  const binding = openBinding()
  const server = serve(settings, { index, count: settings.workers }, log, { names, permits, binding })
  process.once('disconnect', () => process.exit(1))
  process.on('message', (order: EdgeOrder, handle?: Socket | PacketSocket) => {
    if ('connection' in order) {
      report({ taken: order.connection })
      if (handle) server.accept(handle as Socket) // it may have been closed on its way
    } else if ('bound' in order) {
      binding.answer(order.bound, handle as PacketSocket | undefined)
    } else if ('asked' in order) {
      permits.answer(order.asked, order.granted)
    } else if ('freed' in order) {
      server.freed(order.freed)
    } else {
      names?.close()
      server.drain(order.drainMillis).then(() => process.exit(0))
    }
  })
  await Promise.race([server.filled, new Promise((resolve) => setTimeout(resolve, fillMillis))])
  report({ ready: true })
}

function report(what: EdgeReport): void {
  process.send!(what, undefined, undefined, () => undefined)
}

/** Asks the process above, which counts for all workers. */
function openPermits(): Permits & { answer(asked: number, granted: boolean): void } {
  const asking = new Map<number, (granted: boolean) => void>()
  let count = 0
  return {
    acquire(key, limit) {
      count += 1
      const ask = count
      report({ ask, key, limit })
      return new Promise((resolve) => asking.set(ask, resolve))
    },
    release: (key) => report({ release: key }),
    answer(asked, granted) {
      asking.get(asked)?.(granted)
      asking.delete(asked)
    },
  }
}

interface Binding {
  open(name: string): Promise<PacketSocket | undefined>
  answer(name: string, socket: PacketSocket | undefined): void
}

/** Asks the process above, which may take every port. */
function openBinding(): Binding {
  const asking = new Map<string, (socket: PacketSocket | undefined) => void>()
  return {
    open(name) {
      report({ bind: name })
      return new Promise((resolve) => asking.set(name, resolve))
    },
    answer(name, socket) {
      asking.get(name)?.(socket)
      asking.delete(name)
    },
  }
}

/** As root, who alone may listen there. */
async function openNames({ names }: EdgeSettings, log: Logger): Promise<Names | undefined> {
  if (!names) return undefined
  try {
    // A reboot takes it away.
    await ensureResolverAddress(names.homeNumber)
    return await startNames(names)
  } catch (err) {
    log.error({ err }, 'machines cannot ask for names')
    return undefined
  }
}

function serve(
  settings: EdgeSettings,
  worker: AppOptions['worker'],
  log: Logger,
  { names, permits, binding }: { names: Names | undefined; permits: Permits; binding: Binding },
): EdgeServer & Pick<Feed, 'filled'> & Pick<Balance, 'freed'> {
  const files = settings.tls ?? settings.ownTls
  const pair = files && { cert: readFileSync(files.certFile, 'utf8'), key: readFileSync(files.keyFile, 'utf8') }
  flushCompileCache() // which only root may write
  if (settings.uid !== null) becomeUser(settings.uid)
  const db = openDatabase({ ...settings.database, max: 3, query_timeout: 5_000 })
  const table = new RouteTable(settings.domain)
  const wakeOne = (id: string) => db.transaction((tx) => wakeMachine(tx, id))
  const balance = new Balance({ apps: table.apps, wake: wakeOne, permits })
  const pool = new UpstreamPool()
  const { maxFlows } = settings
  const datagrams = createDatagrams({ apps: table.apps, balance, worker, open: binding.open, maxFlows })
  const onError = (err: unknown) => log.error({ err }, 'a request failed')
  const feed = startFeed({
    ...settings,
    names,
    worker,
    table,
    db,
    databaseConfig: settings.database,
    onChange: () => {
      pool.sweep(Date.now(), (key) => table.hasKey(key))
      balance.look()
      tellListens()
      datagrams.look()
    },
    onError: (err) => log.warn({ err }, 'goes on with the routes of before'),
  })
  let told = ''
  function tellListens(): void {
    const listen = [
      ...(settings.api ? [apiListen(settings.api)] : []),
      ...listensOf(table.apps.all(), settings.port),
      ...table.databases.listens(),
    ]
    if (listen.join() === told) return
    told = listen.join()
    report({ listen })
  }
  startAutostop({
    db,
    balance,
    worker,
    lookSeconds: settings.autostopSeconds,
    onError: (err) => log.warn({ err }, 'will look for idle machines later'),
  })
  const wake = (route: { id: string }) => db.transaction((tx) => wakeSandbox(tx, route.id))
  const server = createEdgeServer({
    parts: {
      table,
      pool,
      access: createAccess(db),
      reach: createReach({ table, pool, wake }),
      balance,
      replays: new ReplayCache(),
      edgePort: settings.port,
      region: settings.region,
      kept: { bytes: 0, most: maxKeptBytes },
      encoders: { open: 0, most: maxEncoders },
      domains: [settings.sandboxDomain, settings.domain],
      nextId: idMaker(),
      onError,
    },
    tls: pair
      ? {
          ...pair,
          isRequired: settings.tls !== null,
          certificates: new Certificates(table.apps, Buffer.from(settings.certificateKey, 'base64'), onError),
        }
      : undefined,
    databases: settings.databases,
    api: settings.api,
    maxConnections: settings.maxConnections,
  })
  return {
    ...server,
    drain(millis) {
      datagrams.close()
      return server.drain(millis)
    },
    filled: feed.filled,
    freed: (key) => balance.freed(key),
  }
}

/** Everything that needs more has been read by now. */
function becomeUser(uid: number): void {
  process.setgroups!([uid])
  process.setgid!(uid)
  process.setuid!(uid)
}

if (import.meta.main) await runWorker(process.argv[2]!, Number(process.argv[3]))
