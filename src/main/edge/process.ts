// The process that carries the traffic. It lives under the supervisor and reads all it needs from one file, so that the
// control plane can be absent. This one listens, hands each connection to a worker, and starts over workers that end.
// It reads nothing of what strangers send; workers do, and give up the rights of root.
import { type ChildProcess, fork } from 'node:child_process'
import { BlockList, isIPv4, type Server, type Socket } from 'node:net'
import { PermitBook } from '../../edge/routing/permit.ts'
import { stopMillis } from '../../edge/settings.ts'
import { privateAddresses } from '../../model/network.ts'
import { listen, openListens } from './listen.ts'
import { type EdgeOrder, type EdgeReport, openEdgeLog, readEdgeSettings } from './settings.ts'

/** How long requests may take to end when a worker is replaced. */
const replaceMillis = 30_000
const quickDeathMillis = 2_000
const longestPauseMillis = 5_000
// Connections that wait for a worker, which is a matter of a moment.
const maxWaiting = 1_024

const workerProgram = new URL('worker.ts', import.meta.url).pathname

interface Worker {
  process: ChildProcess
  /** Of those of its generation. */
  index: number
  started: number
  isReady: boolean
  /** Where connections for apps arrive, as far as it knows. */
  listen: string[]
  /** Handed over, and not known to have arrived: if the worker ends they go to another. */
  handed: Map<number, Socket>
}

/** Starts workers by the settings as they are, and by those of later whenever it is told that they changed. */
async function runEdge(file: string): Promise<void> {
  const log = openEdgeLog(readEdgeSettings(file))
  const all = new Set<Worker>()
  const waiting: Socket[] = []
  const book = new PermitBook<Worker>()
  let current = new Set<Worker>()
  let listener: { server: Server; address: string } | undefined
  let pools = poolsOf([])
  const listens = openListens({ hand, pools: () => pools, log })
  let handovers = 0
  let newest = current
  let quickDeaths = 0
  let isStopping = false

  /** Where any of the newest workers knows an app: they hear of changes one after the other. */
  function setListens(): void {
    listens.set([...new Set([...newest].flatMap((worker) => worker.listen))])
  }

  /** To the ready ones in turn. */
  function hand(socket: Socket): void {
    const ready = [...current].filter((worker) => worker.isReady)
    const worker = ready[handovers % ready.length]
    if (worker) handTo(worker, socket)
    else if (waiting.length < maxWaiting) waiting.push(socket)
    else socket.destroy()
  }

  function handTo(worker: Worker, socket: Socket): void {
    handovers += 1
    const connection = handovers
    worker.handed.set(connection, socket)
    const order: EdgeOrder = { connection }
    worker.process.send(order, socket, { keepOpen: true }, () => undefined)
  }

  /** Only this process may take the port, and only the worker reads what arrives there. */
  async function bind(worker: Worker, name: string): Promise<void> {
    const socket = await listens.bind(name)
    const order: EdgeOrder = { bound: name }
    if (socket) worker.process.send(order, socket, () => socket.close())
    else tell(worker, order)
  }

  function start(generation: Set<Worker>, index: number): Promise<void> {
    const child = fork(workerProgram, [file, String(index)], { execArgv: process.execArgv })
    const worker: Worker = { process: child, index, started: Date.now(), isReady: false, listen: [], handed: new Map() }
    all.add(worker)
    generation.add(worker)
    const { promise, resolve } = Promise.withResolvers<void>()
    child.on('error', (err) => log.error({ err }, 'a worker cannot be told'))
    child.on('message', (report: EdgeReport) => {
      if ('taken' in report) {
        worker.handed.get(report.taken)?.destroy() // the worker has its own
        worker.handed.delete(report.taken)
        return
      }
      if ('ask' in report) {
        const granted = book.acquire(worker, report.key, report.limit)
        tell(worker, { asked: report.ask, granted })
        return
      }
      if ('release' in report) {
        for (const refused of book.release(worker, report.release)) tell(refused, { freed: report.release })
        return
      }
      if ('bind' in report) {
        bind(worker, report.bind)
        return
      }
      if ('listen' in report) {
        worker.listen = report.listen
        if (!isStopping && generation === newest) setListens()
        return
      }
      worker.isReady = true
      resolve()
      if (generation === current) for (const socket of waiting.splice(0)) hand(socket)
    })
    child.once('exit', (code, signal) => {
      resolve()
      end(worker, generation, `${signal ?? code}`)
    })
    return promise
  }

  function end(worker: Worker, generation: Set<Worker>, how: string): void {
    all.delete(worker)
    generation.delete(worker)
    for (const [key, refused] of book.forget(worker)) for (const each of refused) tell(each, { freed: key })
    if (isStopping && all.size === 0) process.exit(0)
    if (isStopping) return
    for (const socket of worker.handed.values()) hand(socket)
    if (generation !== current) return
    log.error({ worker: worker.process.pid, how }, 'a worker ended and is started over')
    quickDeaths = Date.now() - worker.started < quickDeathMillis ? quickDeaths + 1 : 0
    setTimeout(() => generation === current && !isStopping && start(generation, worker.index), pauseMillis(quickDeaths))
  }

  /** The new ones are ready before the old ones stop. */
  async function replace(): Promise<void> {
    const settings = readEdgeSettings(file)
    const address = `${settings.host} ${settings.port}`
    const fresh = new Set<Worker>()
    pools = poolsOf([...settings.pools, ...(settings.names ? [privateAddresses(settings.names.homeNumber)] : [])])
    newest = fresh
    const started = Array.from({ length: settings.workers }, (_, index) => start(fresh, index))
    await Promise.all(started)
    const old = current
    current = fresh
    for (const socket of waiting.splice(0)) hand(socket)
    if (listener?.address !== address) {
      const server = await listen(settings, hand)
      listener?.server.close()
      listener = { server, address }
    }
    for (const worker of old) drain(worker, replaceMillis)
    log.info({ version: settings.version, host: settings.host, port: settings.port }, 'listening')
  }

  function stop(): void {
    isStopping = true
    listener?.server.close()
    const closed = listens.close()
    if (all.size === 0) closed.then(() => process.exit(0))
    for (const worker of all) drain(worker, stopMillis)
  }

  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, stop)
  let replacing = replace()
  process.on('SIGHUP', () => {
    replacing = replacing.then(replace).catch((err) => log.error({ err }, 'goes on with the settings of before'))
  })
  await replacing
}

/** One that has ended hears nothing, and that is no harm. */
function tell(worker: Worker, order: EdgeOrder): void {
  worker.process.send(order, () => undefined)
}

function drain(worker: Worker, drainMillis: number): void {
  tell(worker, { drainMillis })
  // One that hangs does not hear.
  setTimeout(() => worker.process.kill('SIGKILL'), drainMillis + 500).unref()
}

function pauseMillis(quickDeaths: number): number {
  return quickDeaths === 0 ? 0 : Math.min(50 * 2 ** quickDeaths, longestPauseMillis)
}

function poolsOf(networks: string[]): BlockList {
  const pools = new BlockList()
  for (const network of networks) {
    const [address = '', bits] = network.split('/')
    const family = isIPv4(address) ? 'ipv4' : 'ipv6'
    pools.addSubnet(address, bits === undefined ? (family === 'ipv4' ? 32 : 128) : Number(bits), family)
  }
  return pools
}

if (import.meta.main) {
  await runEdge(process.argv[2]!).catch((error) => {
    console.error(error)
    process.exit(1)
  })
}
