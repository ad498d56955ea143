import { type AppRoute, findPort, type Target } from '../routing/app.ts'
import type { AppPort } from '../routing/app-port.ts'
import { NoCandidate, type Seat, type Waiter, type Wish } from '../routing/balance.ts'
import type { ClientConnection, EdgeParts } from './client.ts'
import { chooseEncoding } from './compress.ts'
import { Exchange } from './exchange.ts'
import { appResponseText, type ResponseOptions } from './forward.ts'
import type { RequestHead, ResponseHead } from './message.ts'
import type { Upstream } from './upstream.ts'

const repeatable = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'])
/** What is kept of a body, for a replay. */
const maxKeptBytes = 1_048_576
// Of new connections that broke before an answer; idle ones may be closed at any time and do not count.
const maxBroken = 3

/** A request on its way to one of the machines of an app. */
export abstract class MachineExchange extends Exchange {
  protected app: AppRoute
  protected port: AppPort | undefined
  protected wish: Wish | undefined
  protected target: Target | undefined
  private seat: Seat | undefined
  private waiter: Waiter | undefined
  private deadline = 0
  private brokenOff = 0
  private keptBytes = 0

  constructor(client: ClientConnection, parts: EdgeParts, head: RequestHead, app: AppRoute, id: string) {
    super(client, parts, head, id)
    this.app = app
    if (head.body !== 0 && head.body <= maxKeptBytes) this.kept = []
  }

  /** No machine takes it. */
  protected abstract noneFound(error: unknown, reason?: string): void

  /** Looks for a machine within this time. */
  protected seek(millis: number): void {
    this.deadline = Date.now() + millis
    try {
      if (this.attempt()) return
    } catch (error) {
      this.noneFound(error)
      return
    }
    this.wait()
  }

  private wait(): void {
    this.client.limitIdle(undefined)
    const waiter: Waiter = {
      appId: this.app.id,
      deadline: this.deadline,
      attempt: () => {
        try {
          return this.attempt()
        } catch (error) {
          // Not inside of the queue's own loop.
          queueMicrotask(() => this.noneFound(error))
          return true
        }
      },
      giveUp: () => this.noneFound(new NoCandidate(503, 'unavailable', this.whyNot(), ''), 'timeout'),
    }
    this.waiter = waiter
    this.parts.balance.wait(waiter)
  }

  private whyNot(): string {
    const { targets = [] } = this.port ?? {}
    const waited = `within ${this.parts.balance.waitMillis / 1000} s`
    if (targets.some(({ isOpen, load, hardLimit }) => isOpen && load >= hardLimit)) {
      return `all machines of ${this.app.name} were at their hard limits, and none became free ${waited}`
    }
    if (targets.some(({ isOpen }) => isOpen)) return `no machine of ${this.app.name} took a connection ${waited}`
    if (targets.some(({ state, isCordoned }) => state === 'started' && !isCordoned)) {
      return `no machine of ${this.app.name} passed its checks ${waited}`
    }
    return `no machine of ${this.app.name} was there to answer ${waited}`
  }

  /** False when there is no machine yet. */
  private attempt(): boolean {
    if (this.isOver) return true
    const app = this.parts.table.apps.get(this.app.id)
    const port = app && findPort(app, this.client.peer.port, this.client.peer.secure, this.parts.edgePort)
    if (!app || !port?.http) throw new NoCandidate(404, 'not_found', `the app ${this.app.name} offers no HTTP here`)
    this.app = app
    this.port = port
    const target = this.parts.balance.pick(app, port, this.wish)
    if (!target) return false
    this.waiter = undefined
    this.give(target)
    return true
  }

  private give(target: Target): void {
    this.target = target
    const refused = () => {
      this.released()
      this.again()
    }
    // It may be over by the time that `take` returns.
    const seat = this.parts.balance.take(this.app, target, () => this.reach(target), refused)
    if (this.target === target) this.seat = seat
    else this.parts.balance.leave(seat)
  }

  private reach(target: Target): void {
    const { balance, pool } = this.parts
    const { upgrade } = this.head
    // What takes a connection over is not part of HTTP/2.
    const http2 = this.port!.http2 && !upgrade
    const upstream = upgrade || http2 ? undefined : pool.take(target, this.mayRepeat)
    if (upstream) {
      this.send(upstream)
      return
    }
    const connecting: Promise<Upstream> = http2 ? pool.connectHttp2(target) : pool.connect(target)
    connecting.then(
      (fresh) => {
        balance.succeeded(target)
        if (!this.isOver) this.send(fresh)
        else if (http2) fresh.socket.destroy()
        else pool.give(fresh)
      },
      () => {
        balance.failed(target)
        if (this.isOver) return
        this.released()
        this.again()
      },
    )
  }

  protected override send(upstream: Upstream): void {
    const { idleMillis } = this.port!
    if (idleMillis !== undefined) {
      this.client.limitIdle(idleMillis)
      upstream.limitIdle(idleMillis)
    }
    super.send(upstream)
  }

  /** On another machine if there is one, else after a while. */
  private again(): void {
    const left = this.deadline - Date.now()
    if (left <= 0) this.noneFound(new NoCandidate(503, 'unavailable', this.whyNot()), 'retries_exhausted')
    else this.seek(left)
  }

  protected get mayRepeat(): boolean {
    return (this.head.body === 0 || this.kept !== undefined) && repeatable.has(this.head.method)
  }

  protected retry({ isUsed }: Upstream): boolean {
    const { target } = this
    if (!isUsed) this.brokenOff += 1
    if (!target || this.brokenOff > maxBroken) return false
    if (!isUsed) this.parts.balance.failed(target)
    this.takeBack()
    this.again()
    return true
  }

  protected override released(): void {
    const { seat, waiter } = this
    this.target = undefined
    this.seat = undefined
    this.waiter = undefined
    if (waiter) this.parts.balance.cancel(waiter)
    if (seat) this.parts.balance.leave(seat)
  }

  protected override over(): void {
    if (this.isOver) return
    this.dropKept()
    super.over()
  }

  private dropKept(): void {
    this.parts.kept.bytes -= this.keptBytes
    this.keptBytes = 0
    this.kept = undefined
  }

  protected override keepBody(piece: Buffer): void {
    const { kept } = this.parts
    if (this.keptBytes + piece.length > maxKeptBytes || kept.bytes + piece.length > kept.most) {
      this.dropKept()
      return
    }
    this.kept!.push(piece)
    this.keptBytes += piece.length
    kept.bytes += piece.length
  }

  protected responseText(response: ResponseHead, options: ResponseOptions): string {
    return appResponseText(response, options, this.port?.response)
  }

  protected override beginResponse(response: ResponseHead, rest: Buffer): void {
    const { port } = this
    const { encoders } = this.parts
    const mayEncode =
      port?.compresses && encoders.open < encoders.most && !port.response?.fields.has('content-encoding')
    if (!mayEncode) {
      super.beginResponse(response, rest)
      return
    }
    const { head, encoding } = chooseEncoding(this.head, response)
    super.beginResponse(response, rest, head, encoding)
  }
}
