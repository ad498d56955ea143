import type { FastifyBaseLogger } from 'fastify'
import type { Credential } from '../../actions/account/credential.ts'
import type { LiveContext } from '../../live/context.ts'
import type { OpenSessions } from '../../model/account/open-sessions.ts'
import { runtimeVersion } from '../../model/sandbox/sandbox.ts'
import type { Metrics } from './metrics.ts'
import type { Area } from './problem.ts'
import type { Route, SocketRoute } from './route.ts'

export interface ServerOptions {
  area: Area
  routes: Route[]
  sockets?: SocketRoute[]
  /** The context shared by all requests; each request adds the hash of its token. */
  context: Omit<LiveContext, 'tokenHash' | 'attenuation' | 'area'>
  /** Closes what is open when its token is revoked or expires. The tokens are hashes in base64. */
  openSessions: OpenSessions
  log: FastifyBaseLogger
  metrics: Metrics
  rateLimit: boolean
  tls?: { cert: Buffer; key: Buffer }
  /** The time in which the head of a request must arrive. */
  headTimeoutMs?: number
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The hash of the token that the request was sent with. */
    tokenHash: Buffer
    /** The tokens of the request; empty when it was sent without one. */
    credentials: Credential[]
  }

  interface FastifyContextConfig {
    /** The operation behind this path; absent on pages such as /healthz, which need no token. */
    operation?: Route
  }
}

/** The headers of every response, including errors and WebSocket upgrades. */
export function commonHeaders(area: Area, requestId: string): Record<string, string> {
  // Clients choose between protocol versions by `sprite-version`.
  return { 'fly-request-id': requestId, ...(area === 'sandbox' && { 'sprite-version': runtimeVersion }) }
}
