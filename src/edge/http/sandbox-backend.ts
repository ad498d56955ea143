import { Refusal } from '../refusal.ts'
import type { Verdict } from '../routing/access.ts'
import type { SandboxRoute } from '../routing/sandbox.ts'
import type { Upstream } from '../tcp/upstream.ts'
import type { Backend } from './backend.ts'
import type { HttpContext } from './context.ts'
import type { Exchange } from './exchange.ts'
import { type ResponseOptions, requestText, responseText } from './forwarded-head.ts'
import type { ResponseHead } from './message.ts'

const challenge = 'WWW-Authenticate: Bearer realm="berth"\r\n'
const publicAccess: Verdict = { allowed: true, isPlatformToken: false }
const safeMethods = new Set(['GET', 'HEAD', 'OPTIONS'])
const maxRetries = 1

/** Checks the token of a request for a sandbox, and connects to the sandbox. */
export class SandboxBackend implements Backend {
  private readonly exchange: Exchange
  private readonly context: HttpContext
  private readonly route: SandboxRoute
  private withoutAuthorization = false
  private retries = 0
  private endHold = () => {}

  constructor(exchange: Exchange, context: HttpContext, route: SandboxRoute) {
    this.exchange = exchange
    this.context = context
    this.route = route
  }

  start(): void {
    const { route, exchange } = this
    const { authorization } = exchange.head
    const needsNoCheck = route.access === null && authorization === undefined
    if (route.access !== null) this.endHold = this.context.access.hold(authorization, () => this.revoke())
    const verdict = needsNoCheck ? publicAccess : this.context.access.check(route, authorization)
    if (!(verdict instanceof Promise)) this.judge(verdict)
    else {
      verdict.then(
        (result) => this.judge(result),
        (error) => exchange.fail(error),
      )
    }
  }

  /** The token was revoked: the request and, after an upgrade, the connection end. */
  private revoke(): void {
    this.exchange.fail(new Refusal(401, 'unauthorized', 'invalid token', challenge))
  }

  private judge(verdict: Verdict): void {
    const { exchange } = this
    if (exchange.isOver) return
    if (verdict.allowed) this.admit(verdict.isPlatformToken)
    else if ('reason' in verdict) exchange.refuse(refusalFor(verdict))
    else exchange.refuse(new Refusal(503, 'unavailable', 'tokens cannot be checked at the moment; try again shortly'))
  }

  private admit(withoutAuthorization: boolean): void {
    const { route, exchange } = this
    this.withoutAuthorization = withoutAuthorization
    // A stopped service may still be shutting down and have connections open.
    const mayReuse = route.service?.wanted !== false && !exchange.head.upgrade
    const upstream = mayReuse ? this.context.pool.take(route, this.mayRepeat) : undefined
    if (upstream) this.send(upstream)
    else this.connect()
  }

  private connect(): void {
    this.context.sandboxes.connect(this.route).then(
      (upstream) => {
        if (this.exchange.isOver) this.context.pool.give(upstream)
        else this.send(upstream)
      },
      (error) => this.exchange.fail(error),
    )
  }

  private send(upstream: Upstream): void {
    const { withoutAuthorization } = this
    const { head, client, id } = this.exchange
    const options = { id, withoutAuthorization, keepAlive: true, added: '' }
    this.exchange.send(upstream, requestText(head, client.peer, options))
  }

  private get mayRepeat(): boolean {
    const { body, method } = this.exchange.head
    return body === 0 && safeMethods.has(method)
  }

  /**
   * Retries without limit when a reused connection broke, as targets close idle connections at any time, and once when a
   * new one did, as a program that exits closes connections that it has not accepted yet.
   */
  retry({ isUsed }: Upstream): boolean {
    if (!this.mayRepeat) return false
    if (!isUsed) this.retries += 1
    if (this.retries > maxRetries) return false
    this.exchange.detach()
    this.connect()
    return true
  }

  intercept(): boolean {
    return false
  }

  encode(): undefined {
    return undefined
  }

  responseText(response: ResponseHead, options: ResponseOptions): string {
    return responseText(response, options)
  }

  release(): void {
    this.endHold()
  }
}

function refusalFor({ reason, isForbidden }: Extract<Verdict, { reason: string }>): Refusal {
  return isForbidden ? new Refusal(403, 'forbidden', reason) : new Refusal(401, 'unauthorized', reason, challenge)
}
