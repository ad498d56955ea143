// The process that carries the traffic. It lives under the supervisor and reads all it needs from one file, so that the
// control plane can be absent. One process listens and starts over what ends; its workers, who read what strangers send,
// give up the rights of root.
import cluster, { type Worker } from 'node:cluster'
import { stopMillis } from '../edge/settings.ts'
import { type EdgeOrder, openEdgeLog, readEdgeSettings } from './edge-settings.ts'

/** How long requests may take to end when a worker is replaced. */
const replaceMillis = 30_000
const quickDeathMillis = 2_000
const longestPauseMillis = 5_000

/** Starts workers by the settings as they are, and by those of later whenever it is told that they changed. */
function runPrimary(file: string): void {
  const log = openEdgeLog(readEdgeSettings(file))
  let current = new Set<Worker>()
  let quickDeaths = 0
  let isStopping = false

  cluster.setupPrimary({ args: [file] })

  function fork(into: Set<Worker>): Promise<void> {
    const worker = cluster.fork()
    const started = Date.now()
    into.add(worker)
    const { promise, resolve } = Promise.withResolvers<void>()
    worker.once('listening', () => resolve())
    worker.once('exit', (code, signal) => {
      resolve()
      into.delete(worker)
      if (isStopping && cluster.workers && Object.keys(cluster.workers).length === 0) process.exit(0)
      if (into !== current || isStopping) return
      log.error({ worker: worker.process.pid, code, signal }, 'a worker ended and is started over')
      quickDeaths = Date.now() - started < quickDeathMillis ? quickDeaths + 1 : 0
      setTimeout(() => into === current && !isStopping && fork(into), pauseMillis(quickDeaths))
    })
    return promise
  }

  /** The new ones listen before the old ones stop. */
  async function replace(): Promise<void> {
    const settings = readEdgeSettings(file)
    const old = current
    const fresh = new Set<Worker>()
    current = fresh
    await Promise.all(Array.from({ length: settings.workers }, () => fork(fresh)))
    for (const worker of old) order(worker, { drainMillis: replaceMillis })
    log.info({ version: settings.version, host: settings.host, port: settings.port }, 'listening')
  }

  let replacing = replace()
  process.on('SIGHUP', () => {
    replacing = replacing.then(replace).catch((err) => log.error({ err }, 'goes on with the settings of before'))
  })
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      isStopping = true
      const workers = Object.values(cluster.workers ?? {})
      for (const worker of workers) if (worker) order(worker, { drainMillis: stopMillis })
      if (workers.length === 0) process.exit(0)
    })
  }
}

function pauseMillis(quickDeaths: number): number {
  return quickDeaths === 0 ? 0 : Math.min(50 * 2 ** quickDeaths, longestPauseMillis)
}

function order(worker: Worker, what: EdgeOrder): void {
  // One that has just ended cannot be told, and need not be.
  if (worker.isConnected()) worker.send(what, () => undefined)
}

if (import.meta.main) {
  const file = process.argv[2]!
  if (cluster.isPrimary) runPrimary(file)
  else await (await import('./edge-worker.ts')).runWorker(file)
}
