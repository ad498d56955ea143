// The process that carries the traffic. It runs under the supervisor and reads all settings from one file, so that it does
// not depend on the control plane. It listens, hands each connection to a worker, and restarts workers that exit. It runs
// as root and parses nothing that clients send; workers do, and they drop their privileges.
import { BlockList, isIPv4, type Socket } from 'node:net'
import type { Logger } from 'pino'
import { PermitLedger } from '../../edge/routing/permit.ts'
import { type EdgeSettings, stopTimeoutMs } from '../../edge/settings.ts'
import { privateAddresses } from '../../model/network.ts'
import { Handover } from './handover.ts'
import { type AppListeners, openAppListeners } from './listen.ts'
import { MainListener } from './main-listener.ts'
import { openEdgeLog, readEdgeSettings } from './settings.ts'
import { SocketHolder } from './socket-holder.ts'
import type { WorkerReport } from './worker-message.ts'
import { WorkerProcess } from './worker-process.ts'

/** Requests may take this long to finish when a worker is replaced. */
const replaceTimeoutMs = 30_000
/** Workers that exit sooner are restarted with a growing delay. */
const quickExitMs = 2_000
const maxRestartDelayMs = 5_000

/** Workers that were started with the same settings. */
type Generation = Set<WorkerProcess>

class EdgeProcess {
  private readonly settingsFile: string
  private readonly log: Logger
  private readonly workers = new Set<WorkerProcess>()
  private readonly permits = new PermitLedger<WorkerProcess>()
  private readonly handover = new Handover(() => this.current)
  private readonly appListeners: AppListeners
  private readonly listener: MainListener
  /** The generation that gets connections. */
  private current: Generation = new Set()
  /** The generation that was started last; it becomes the current one when its workers are ready. */
  private newest: Generation = this.current
  /** Networks whose addresses may be added to the host for apps. */
  private pools = createBlockList([])
  private quickExits = 0
  private isStopping = false

  constructor(settingsFile: string) {
    this.settingsFile = settingsFile
    const settings = readEdgeSettings(settingsFile)
    this.log = openEdgeLog(settings)
    const hand = (socket: Socket) => this.handover.hand(socket)
    // Settings of an older version lack the socket, until the control plane has started.
    const holder = new SocketHolder(settings.socketHolder ?? null, this.log)
    this.listener = new MainListener(holder, hand)
    this.appListeners = openAppListeners({
      hand,
      pools: () => this.pools,
      isShared: (host, port) => this.listener.includes(host, port),
      holder,
      log: this.log,
    })
  }

  /** Starts workers with the present settings, and drains the old ones when the new ones are ready. */
  async replaceWorkers(): Promise<void> {
    const settings = readEdgeSettings(this.settingsFile)
    const fresh: Generation = new Set()
    this.pools = createBlockList(listPools(settings))
    this.newest = fresh
    // After a restart of this process, clients wait for the first workers instead of being refused.
    if (this.workers.size === 0) await this.listener.open(settings, this.appListeners)
    await Promise.all(Array.from({ length: settings.workers }, (_, index) => this.startWorker(fresh, index)))
    const old = this.current
    this.current = fresh
    this.handover.flush()
    for (const worker of old) worker.drain(replaceTimeoutMs)
    await this.listener.open(settings, this.appListeners)
    this.log.info({ version: settings.version, host: settings.host, port: settings.port }, 'listening')
  }

  /** Resolves when the worker is ready or has exited. */
  private startWorker(generation: Generation, index: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    const worker = new WorkerProcess({
      settingsFile: this.settingsFile,
      index,
      onError: (err) => this.log.error({ err }, 'sending to a worker failed'),
      onReport: (sender, report) => {
        this.onReport(sender, generation, report)
        if ('ready' in report) resolve()
      },
      onExit: (exited, how) => {
        resolve()
        this.onExit(exited, generation, how)
      },
    })
    this.workers.add(worker)
    generation.add(worker)
    return promise
  }

  private onReport(worker: WorkerProcess, generation: Generation, report: WorkerReport): void {
    if ('taken' in report) worker.confirmConnection(report.taken)
    else if ('ask' in report) {
      worker.send({ asked: report.ask, granted: this.permits.acquire(worker, report.key, report.limit) })
    } else if ('release' in report) {
      this.notifyFreed(report.release, this.permits.release(worker, report.release))
    } else if ('failed' in report) this.replaceWorker(worker, generation)
    else if ('bind' in report) this.bindDatagrams(worker, report.bind)
    else if ('listen' in report) {
      worker.listens = report.listen
      if (!this.isStopping && generation === this.newest) this.updateListeners()
    } else {
      worker.isReady = true
      if (generation === this.current) this.handover.flush()
    }
  }

  /** The worker gets no more connections; those that it has may finish. */
  private replaceWorker(worker: WorkerProcess, generation: Generation): void {
    if (this.isStopping || !generation.delete(worker)) return
    this.log.error({ worker: worker.pid }, 'replacing a worker after an unhandled error')
    setTimeout(() => {
      if (generation === this.newest && !this.isStopping) this.startWorker(generation, worker.index)
    }, this.restartDelayMs(worker))
    worker.drain(replaceTimeoutMs)
  }

  private notifyFreed(key: string, workers: WorkerProcess[]): void {
    for (const worker of workers) worker.send({ freed: key })
  }

  /** Only this process may bind every port, and only the worker reads what arrives there. */
  private async bindDatagrams(worker: WorkerProcess, name: string): Promise<void> {
    const socket = await this.appListeners.bindDatagrams(name)
    if (socket) worker.sendSocket({ bound: name }, socket)
    else worker.send({ bound: name })
  }

  /** Listens wherever any of the newest workers knows an app, because they learn of changes at different times. */
  private updateListeners(): void {
    this.appListeners.set([...new Set([...this.newest].flatMap((worker) => worker.listens))])
  }

  private onExit(worker: WorkerProcess, generation: Generation, how: string): void {
    this.workers.delete(worker)
    const isReplaced = !generation.delete(worker)
    for (const [key, refused] of this.permits.releaseAll(worker)) this.notifyFreed(key, refused)
    if (this.isStopping && this.workers.size === 0) process.exit(0)
    if (this.isStopping) return
    for (const socket of worker.listUnconfirmed()) this.handover.hand(socket)
    if (generation !== this.current || isReplaced) return
    this.log.error({ worker: worker.pid, how }, 'worker exited; restarting it')
    setTimeout(() => {
      if (generation === this.current && !this.isStopping) this.startWorker(generation, worker.index)
    }, this.restartDelayMs(worker))
  }

  private restartDelayMs({ startedAt }: WorkerProcess): number {
    this.quickExits = Date.now() - startedAt < quickExitMs ? this.quickExits + 1 : 0
    return this.quickExits === 0 ? 0 : Math.min(50 * 2 ** this.quickExits, maxRestartDelayMs)
  }

  stop(): void {
    this.isStopping = true
    this.listener.close()
    const closed = this.appListeners.close()
    if (this.workers.size === 0) closed.then(() => process.exit(0))
    for (const worker of this.workers) worker.drain(stopTimeoutMs)
  }

  logReplaceError(err: unknown): void {
    this.log.error({ err }, 'replacing the workers failed; keeping the old settings')
  }
}

function listPools({ pools, names }: EdgeSettings): string[] {
  return names ? [...pools, privateAddresses(names.homeNumber)] : pools
}

function createBlockList(networks: string[]): BlockList {
  const list = new BlockList()
  for (const network of networks) {
    const [address = '', bits] = network.split('/')
    const family = isIPv4(address) ? 'ipv4' : 'ipv6'
    list.addSubnet(address, bits === undefined ? (family === 'ipv4' ? 32 : 128) : Number(bits), family)
  }
  return list
}

/** SIGHUP makes the edge read its settings again and replace its workers. */
async function runEdge(settingsFile: string): Promise<void> {
  const edge = new EdgeProcess(settingsFile)
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => edge.stop())
  let replacing = edge.replaceWorkers()
  process.on('SIGHUP', () => {
    replacing = replacing.then(() => edge.replaceWorkers()).catch((err) => edge.logReplaceError(err))
  })
  await replacing
}

if (import.meta.main) {
  await runEdge(process.argv[2]!).catch((error) => {
    console.error(error)
    process.exit(1)
  })
}
