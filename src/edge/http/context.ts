import type { Access } from '../routing/access.ts'
import type { LoadBalancer } from '../routing/balancer.ts'
import type { RouteTable } from '../routing/table.ts'
import type { TrustedProxies } from '../tcp/trusted-proxy.ts'
import type { UpstreamPool } from '../tcp/upstream-pool.ts'
import type { ByteBudget } from '../types.ts'
import type { EncoderLimit } from './compress.ts'
import type { Http2Upstreams } from './http2-upstream.ts'
import type { ReplayCache } from './replay/replay-cache.ts'
import type { SandboxConnector } from './sandbox-connector.ts'

/** The parts of the edge that serve HTTP requests. */
export interface HttpContext {
  table: RouteTable
  access: Access
  pool: UpstreamPool
  http2: Http2Upstreams
  sandboxes: Pick<SandboxConnector, 'connect'>
  balancer: LoadBalancer
  replays: ReplayCache
  /** The port that serves all host names; other ports belong to single apps. */
  edgePort: number
  region: string
  /** Memory for request bodies that may have to be sent again. */
  resendBudget: ByteBudget
  encoders: EncoderLimit
  /** Only host names below these belong to sandboxes and apps. */
  domains: string[]
  trustedProxies: TrustedProxies
  nextId(): string
  onError(error: unknown): void
}
