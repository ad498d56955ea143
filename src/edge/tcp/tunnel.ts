import type { Duplex } from 'node:stream'
import type { AppRoute } from '../routing/app.ts'
import type { AppPort } from '../routing/app-port.ts'
import { MachineSearch, type SearchContext, type SearchUser } from '../routing/machine-search.ts'
import type { Target } from '../routing/target.ts'
import { type ProxiedPeer, proxyHeader } from './proxy-protocol.ts'
import { Relay } from './relay.ts'
import type { UpstreamPool } from './upstream-pool.ts'

export interface TunnelContext extends SearchContext {
  pool: Pick<UpstreamPool, 'connect'>
}

const idleTimeoutMs = 3_600_000

/** A TCP connection of a client to a machine of an app. */
export class Tunnel extends Relay implements SearchUser {
  readonly peer: ProxiedPeer
  private readonly context: TunnelContext
  private readonly search: MachineSearch

  constructor(socket: Duplex, context: TunnelContext, peer: ProxiedPeer, app: AppRoute) {
    super(socket, idleTimeoutMs)
    this.context = context
    this.peer = peer
    this.search = new MachineSearch(context, this, app)
  }

  start(): void {
    this.search.start(this.context.balancer.waitTimeoutMs)
  }

  accepts(): boolean {
    return true
  }

  onWait(): void {}

  onNoMachine(): void {
    this.socket.destroy()
  }

  connect(target: Target, { proxyProtocol }: AppPort): void {
    const { balancer, pool } = this.context
    pool.connect(target).then(
      (upstream) => {
        balancer.connectSucceeded(target)
        if (this.isOver) upstream.socket.destroy()
        else if (!proxyProtocol) this.join(upstream)
        else this.join(upstream, proxyHeader(proxyProtocol, this.peer, upstream.socket.localPort ?? 0))
      },
      () => {
        balancer.connectFailed(target)
        this.search.retry()
      },
    )
  }

  protected override onClose(): void {
    super.onClose()
    this.search.release()
  }
}
