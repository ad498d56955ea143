import { type ChildProcess, fork } from 'node:child_process'
import type { Socket as UdpSocket } from 'node:dgram'
import type { Socket } from 'node:net'
import { inheritedEnvironment } from '../config.ts'
import type { WorkerCommand, WorkerReport } from './worker-message.ts'

const program = new URL('worker.ts', import.meta.url).pathname
/** A worker that has not exited this long after its drain timeout is killed. */
const killDelayMs = 500

export interface WorkerProcessOptions {
  settingsFile: string
  /** The number of the worker within its generation. */
  index: number
  onReport(worker: WorkerProcess, report: WorkerReport): void
  onExit(worker: WorkerProcess, how: string): void
  onError(error: Error): void
}

/** A worker as the edge process sees it. */
export class WorkerProcess {
  readonly index: number
  readonly startedAt = Date.now()
  isReady = false
  /** The sockets that the worker needs for apps, as `address port`. */
  listens: string[] = []
  private readonly child: ChildProcess
  /** Connections that the worker has not confirmed. If it exits they go to another worker. */
  private readonly unconfirmed = new Map<number, Socket>()

  constructor({ settingsFile, index, onReport, onExit, onError }: WorkerProcessOptions) {
    this.index = index
    this.child = fork(program, [settingsFile, String(index)], {
      execArgv: process.execArgv,
      env: workerEnvironment(),
    })
    this.child.on('error', onError)
    this.child.on('message', (report: WorkerReport) => onReport(this, report))
    this.child.once('exit', (code, signal) => onExit(this, `${signal ?? code}`))
  }

  get pid(): number | undefined {
    return this.child.pid
  }

  /** Sending to a worker that has exited does nothing. */
  send(command: WorkerCommand): void {
    this.child.send(command, () => undefined)
  }

  sendConnection(connection: number, socket: Socket): void {
    this.unconfirmed.set(connection, socket)
    const command: WorkerCommand = { connection }
    this.child.send(command, socket, { keepOpen: true }, () => undefined)
  }

  confirmConnection(connection: number): void {
    this.unconfirmed.get(connection)?.destroy() // the worker has its own copy
    this.unconfirmed.delete(connection)
  }

  listUnconfirmed(): Iterable<Socket> {
    return this.unconfirmed.values()
  }

  /** Hands over a UDP socket, of which the worker gets a copy. */
  sendSocket(command: WorkerCommand, socket: UdpSocket): void {
    this.child.send(command, socket, () => socket.close())
  }

  drain(timeoutMs: number): void {
    this.send({ drainMillis: timeoutMs })
    setTimeout(() => this.child.kill('SIGKILL'), timeoutMs + killDelayMs).unref()
  }
}

/**
 * The run script of a service kills what carries the mark of the service before it starts it again. Workers whose parent
 * was killed carry another mark, because they still finish their requests. When the platform stops, they end like the rest.
 */
function workerEnvironment() {
  const environment = inheritedEnvironment()
  const mark = environment.BERTH_SERVICE
  return { ...environment, ...(mark !== undefined && { BERTH_SERVICE: `${mark}-worker` }) }
}
