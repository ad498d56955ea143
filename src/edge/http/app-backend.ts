import { Refusal } from '../refusal.ts'
import { type AppRoute, findPort } from '../routing/app.ts'
import type { AppPort } from '../routing/app-port.ts'
import { NoCandidate } from '../routing/balancer.ts'
import { MachineSearch, type SearchFailure, type SearchUser } from '../routing/machine-search.ts'
import type { Target } from '../routing/target.ts'
import type { Upstream } from '../tcp/upstream.ts'
import type { Backend } from './backend.ts'
import { isSecureRequest } from './client-origin.ts'
import { chooseEncoding, type Outgoing } from './compress.ts'
import type { HttpContext } from './context.ts'
import type { Exchange } from './exchange.ts'
import { appResponseText, type ResponseOptions, requestText } from './forwarded-head.ts'
import type { ResponseHead } from './message.ts'
import { parseSelector } from './replay/replay-request.ts'
import { Replayer } from './replay/replayer.ts'

const idempotentMethods = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'])
/** New connections that may break before a response; reused ones can be closed at any time and do not count. */
const maxBroken = 3

/** Gives a request for an app to one of its machines, and replays it to others when a machine asks for that. */
export class AppBackend implements Backend, SearchUser {
  readonly peer: Exchange['client']['peer']
  private readonly exchange: Exchange
  private readonly context: HttpContext
  private readonly search: MachineSearch
  private readonly replayer: Replayer
  private port: AppPort | undefined
  private brokenConnections = 0

  constructor(exchange: Exchange, context: HttpContext, app: AppRoute) {
    const { balancer, table, edgePort } = context
    this.exchange = exchange
    this.context = context
    this.peer = exchange.client.peer
    this.search = new MachineSearch({ apps: table.apps, balancer, edgePort }, this, app)
    this.replayer = new Replayer(exchange, context, this.search)
    exchange.body.keepCopy(exchange.head, context.resendBudget)
  }

  get isOver(): boolean {
    return this.exchange.isOver
  }

  start(): void {
    const { exchange, peer, search } = this
    const port = findPort(search.app, peer.port, peer.secure, this.context.edgePort)
    if (!port?.http) {
      const lack = search.app.targets.length === 0 ? 'has no machine with a service yet' : 'offers no HTTP on this port'
      exchange.refuse(new Refusal(404, 'not_found', `the app ${search.app.name} ${lack}`))
      return
    }
    if (this.needsHttps(port)) {
      exchange.refuse(this.redirectToHttps())
      return
    }
    this.port = port
    search.selector = parseSelector(exchange.head)
    this.replayer.applyCache(port.sessions)
    search.start(this.context.balancer.waitTimeoutMs)
  }

  private needsHttps({ forceHttps }: AppPort): boolean {
    const { client, head } = this.exchange
    const isPrivate = client.address !== undefined && this.search.app.privateAddresses.includes(client.address)
    return forceHttps && !isPrivate && !isSecureRequest(head, client.peer)
  }

  private redirectToHttps(): Refusal {
    const { authority, target } = this.exchange.head
    const host = this.peer.port === this.context.edgePort ? authority : authority.replace(/:\d+$/, '')
    const location = `Location: https://${host}${target === '*' ? '/' : target}\r\n`
    return new Refusal(301, 'moved', 'this app accepts HTTPS only', location)
  }

  accepts({ http }: AppPort): boolean {
    return http
  }

  onWait(): void {
    this.exchange.client.limitIdle(undefined)
  }

  connect(target: Target, port: AppPort): void {
    const { pool, http2 } = this.context
    const { upgrade } = this.exchange.head
    this.port = port
    // HTTP/2 has no Upgrade field.
    const usesHttp2 = port.http2 && !upgrade
    const idle = upgrade || usesHttp2 ? undefined : pool.take(target, this.mayRepeat)
    if (idle) {
      this.send(idle, port)
      return
    }
    const connecting: Promise<Upstream> = usesHttp2 ? http2.connect(target) : pool.connect(target)
    connecting.then(
      (upstream) => this.onConnected(upstream, target, port, usesHttp2),
      () => this.onConnectFailed(target),
    )
  }

  private onConnected(upstream: Upstream, target: Target, port: AppPort, isHttp2: boolean): void {
    this.context.balancer.connectSucceeded(target)
    if (!this.isOver) this.send(upstream, port)
    else if (isHttp2) upstream.socket.destroy()
    else this.context.pool.give(upstream)
  }

  private onConnectFailed(target: Target): void {
    this.context.balancer.connectFailed(target)
    if (!this.isOver) this.search.retry()
  }

  private send(upstream: Upstream, { idleTimeoutMs }: AppPort): void {
    const { exchange, replayer, search } = this
    if (idleTimeoutMs !== undefined) {
      exchange.client.limitIdle(idleTimeoutMs)
      upstream.limitIdle(idleTimeoutMs)
    }
    let added = `Fly-Region: ${this.context.region}\r\n${replayer.fields}`
    const preferred = search.selector?.preferredInstance
    if (preferred && search.target?.machineId !== preferred) {
      added += `Fly-Preferred-Instance-Unavailable: ${preferred}\r\n`
    }
    const options = { id: exchange.id, withoutAuthorization: false, keepAlive: true, added }
    exchange.send(upstream, requestText(replayer.head, this.peer, options))
  }

  private get mayRepeat(): boolean {
    const { head, body } = this.exchange
    return body.canResend && idempotentMethods.has(head.method)
  }

  retry({ isUsed }: Upstream): boolean {
    const { target } = this.search
    if (!this.mayRepeat) return false
    if (!isUsed) this.brokenConnections += 1
    if (!target || this.brokenConnections > maxBroken) return false
    if (!isUsed) this.context.balancer.connectFailed(target)
    this.exchange.detach()
    this.search.retry()
    return true
  }

  intercept(response: ResponseHead, rest: Buffer): boolean {
    const { target } = this.search
    if (target) target.failures = 0
    return this.replayer.intercept(response, rest)
  }

  /** The search found no machine: a cached or failed replay falls back to the app itself, else the client gets an error. */
  onNoMachine(error: unknown, reason: SearchFailure): void {
    if (this.isOver) return
    if (!(error instanceof NoCandidate) || !this.replayer.fallBack(reason)) this.exchange.fail(error)
  }

  responseText(response: ResponseHead, options: ResponseOptions): string {
    return appResponseText(response, options, this.port?.response)
  }

  encode(response: ResponseHead): Outgoing | undefined {
    const { port } = this
    const { encoders } = this.context
    const mayEncode = port?.compresses && encoders.open < encoders.max && !port.response?.fields.has('content-encoding')
    return mayEncode ? chooseEncoding(this.exchange.head, response) : undefined
  }

  release(): void {
    this.search.release()
  }
}
