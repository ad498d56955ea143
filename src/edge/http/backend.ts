import type { Upstream } from '../tcp/upstream.ts'
import type { Outgoing } from './compress.ts'
import type { ResponseOptions } from './forwarded-head.ts'
import type { ResponseHead } from './message.ts'

/** Finds the upstream of a request, and decides how its response is treated. */
export interface Backend {
  /** Begins to look for an upstream. */
  start(): void
  /** The connection broke before any response. Returns true if the request is sent again, over another connection. */
  retry(upstream: Upstream): boolean
  /** Returns true if the backend uses the response itself, such as a replay; then the client does not get it. */
  intercept(response: ResponseHead, rest: Buffer): boolean
  responseText(response: ResponseHead, options: ResponseOptions): string
  /** Chooses the encoding of the body; undefined leaves the response as it is. */
  encode(response: ResponseHead): Outgoing | undefined
  /** The request is over, or no longer needs its upstream. */
  release(): void
}
