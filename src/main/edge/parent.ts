// The requests of a worker to its parent, the edge process.
import type { Socket as UdpSocket } from 'node:dgram'
import type { Permits } from '../../edge/routing/permit.ts'
import type { WorkerReport } from './worker-message.ts'

export function reportToParent(report: WorkerReport): void {
  process.send!(report, undefined, undefined, () => undefined)
}

/** Requests permits from the parent, which counts them for all workers. */
export class ParentPermits implements Permits {
  private readonly pending = new Map<number, (granted: boolean) => void>()
  private count = 0

  acquire(key: string, limit: number): Promise<boolean> {
    this.count += 1
    const ask = this.count
    reportToParent({ ask, key, limit })
    return new Promise((resolve) => this.pending.set(ask, resolve))
  }

  release(key: string): void {
    reportToParent({ release: key })
  }

  onReply(ask: number, granted: boolean): void {
    this.pending.get(ask)?.(granted)
    this.pending.delete(ask)
  }
}

/** Requests UDP sockets from the parent, which runs as root and can bind every port. */
export class ParentSockets {
  private readonly pending = new Map<string, (socket: UdpSocket | undefined) => void>()

  /** `name` is `address port`. Resolves to undefined when the socket cannot be bound now. */
  open(name: string): Promise<UdpSocket | undefined> {
    reportToParent({ bind: name })
    return new Promise((resolve) => this.pending.set(name, resolve))
  }

  onReply(name: string, socket: UdpSocket | undefined): void {
    this.pending.get(name)?.(socket)
    this.pending.delete(name)
  }
}
