import type { Route } from '../routing/route.ts'
import type { Verdict } from './access.ts'
import { Refusal } from './answer.ts'
import type { ClientConnection, EdgeParts } from './client.ts'
import { Exchange } from './exchange.ts'
import { type ResponseOptions, requestText, responseText } from './forward.ts'
import type { RequestHead, ResponseHead } from './message.ts'
import type { Upstream } from './upstream.ts'

const challenge = 'WWW-Authenticate: Bearer realm="berth"\r\n'
const open: Verdict = { allowed: true, isOurs: false }
const repeatable = new Set(['GET', 'HEAD', 'OPTIONS'])

function refusalOf({ why, isForbidden }: Extract<Verdict, { why: string }>): Refusal {
  return isForbidden ? new Refusal(403, 'forbidden', why) : new Refusal(401, 'unauthorized', why, challenge)
}

/** A request for a sandbox: whoever asks may have to show a token, and there is one place that it can go to. */
export class SandboxExchange extends Exchange {
  private readonly route: Route
  private withoutAuthorization = false
  private retries = 0

  constructor(client: ClientConnection, parts: EdgeParts, head: RequestHead, route: Route, id: string) {
    super(client, parts, head, id)
    this.route = route
  }

  start(): void {
    const { route, head } = this
    const isOpen = route.access === null && head.authorization === undefined
    const verdict = isOpen ? open : this.parts.access.check(route, head.authorization)
    if (!(verdict instanceof Promise)) this.judge(verdict)
    else {
      verdict.then(
        (answer) => this.judge(answer),
        (error) => this.fail(error),
      )
    }
  }

  private judge(verdict: Verdict): void {
    if (this.isOver) return
    if (verdict.allowed) this.admit(verdict.isOurs)
    else if ('why' in verdict) this.refuse(refusalOf(verdict))
    else this.refuse(new Refusal(503, 'unavailable', 'tokens cannot be checked at the moment; try again shortly'))
  }

  private admit(withoutAuthorization: boolean): void {
    this.withoutAuthorization = withoutAuthorization
    const { route } = this
    // A stopped service may still be on its way out, and a connection to it open.
    const mayTake = route.service?.wanted !== false && !this.head.upgrade
    const upstream = mayTake ? this.parts.pool.take(route, this.mayRepeat) : undefined
    if (upstream) this.send(upstream)
    else this.connect()
  }

  private connect(): void {
    this.parts.reach.connect(this.route).then(
      (upstream) => {
        if (this.isOver) this.parts.pool.give(upstream)
        else this.send(upstream)
      },
      (error) => this.fail(error),
    )
  }

  protected get mayRepeat(): boolean {
    return this.head.body === 0 && repeatable.has(this.head.method)
  }

  /**
   * Without a limit where the connection had been idle, as those are closed at any time; once where it was new, because
   * a program that ends takes along the connections that it has not accepted yet.
   */
  protected retry({ isUsed }: Upstream): boolean {
    if (!isUsed) this.retries += 1
    if (this.retries > 1) return false
    this.takeBack()
    this.connect()
    return true
  }

  protected requestText(): string {
    const { id, withoutAuthorization } = this
    return requestText(this.head, this.client.peer, { id, withoutAuthorization, keepAlive: true, added: '' })
  }

  protected responseText(response: ResponseHead, options: ResponseOptions): string {
    return responseText(response, options)
  }
}
