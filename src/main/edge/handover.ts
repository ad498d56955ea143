import type { Socket } from 'node:net'
import type { WorkerProcess } from './worker-process.ts'

/** Connections wait only for the moment in which no worker is ready. */
const maxWaiting = 1_024

/** Distributes connections to the ready workers in turn. */
export class Handover {
  private readonly findWorkers: () => Iterable<WorkerProcess>
  private readonly waiting: Socket[] = []
  private count = 0

  constructor(findWorkers: () => Iterable<WorkerProcess>) {
    this.findWorkers = findWorkers
  }

  hand(socket: Socket): void {
    const ready = [...this.findWorkers()].filter((worker) => worker.isReady)
    const worker = ready[this.count % ready.length]
    if (worker) {
      this.count += 1
      worker.sendConnection(this.count, socket)
    } else if (this.waiting.length < maxWaiting) this.waiting.push(socket)
    else socket.destroy()
  }

  /** Hands over the connections that have waited for a worker. */
  flush(): void {
    for (const socket of this.waiting.splice(0)) this.hand(socket)
  }
}
