import { Refusal } from './answer.ts'
import { type AppRoute, findPort, type Target } from './app.ts'
import type { AppPort } from './app-port.ts'
import { NoCandidate, type Seat, type Waiter, type Wish } from './balance.ts'
import type { ClientConnection, EdgeParts } from './client.ts'
import { chooseEncoding } from './compress.ts'
import { Exchange, fieldOf } from './exchange.ts'
import { appResponseText, isSecureRequest, type ResponseOptions, requestText } from './forward.ts'
import type { RequestHead, ResponseHead } from './message.ts'
import { BadReplay, parseReplay, parseReplayJson, type Replay, replayField, replayType } from './replay.ts'
import { type CachedReplay, type CacheOrder, readCacheOrder } from './replay-cache.ts'
import { failedText, type Replaying, sourceText, transformed, wishOf } from './replay-request.ts'
import type { Upstream } from './upstream.ts'

const repeatable = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'])
/** What is kept of a body, for a replay. */
const maxKeptBytes = 1_048_576
const maxReplays = 10
// Of new connections that broke before an answer; idle ones may be closed at any time and do not count.
const maxBroken = 3
const maxReplayJsonBytes = 65_536

/** A request for an app: one of its machines gets it, and may have it given to another. */
export class AppExchange extends Exchange {
  /** As it is sent, after a replay perhaps changed. */
  private requestHead: RequestHead
  private app: AppRoute
  private port: AppPort | undefined
  private wish: Wish | undefined
  private target: Target | undefined
  private seat: Seat | undefined
  private waiter: Waiter | undefined
  private deadline = 0
  private brokenOff = 0
  private keptBytes = 0
  private replays = 0
  private replaying: Replaying | undefined
  /** The answer is the last word, whatever it asks for. */
  private isFinal = false
  /** Of the replay that led here. */
  private replaySource = ''
  /** The replay of before that led here without the word of a program. */
  private cached: { entry: CachedReplay; through: AppRoute; wish: Wish | undefined } | undefined
  private cacheStatus = ''

  constructor(client: ClientConnection, parts: EdgeParts, head: RequestHead, app: AppRoute, id: string) {
    super(client, parts, head, id)
    this.requestHead = head
    this.app = app
    if (head.body !== 0 && head.body <= maxKeptBytes) this.kept = []
  }

  start(): void {
    const { client, head } = this
    this.port = findPort(this.app, client.peer.port, client.peer.secure, this.parts.edgePort)
    if (!this.port?.http) {
      this.refuse(new Refusal(404, 'not_found', `the app ${this.app.name} offers no HTTP on this port`))
      return
    }
    const isPrivate = client.address !== undefined && this.app.privateAddresses.includes(client.address)
    if (this.port.forceHttps && !isPrivate && !isSecureRequest(head, client.peer)) {
      const authority = client.peer.port === this.parts.edgePort ? head.authority : head.authority.replace(/:\d+$/, '')
      const location = `Location: https://${authority}${head.target === '*' ? '/' : head.target}\r\n`
      this.refuse(new Refusal(301, 'moved', 'this app is spoken to over TLS', location))
      return
    }
    this.wish = wishOf(head)
    const cached = this.parts.replays.find(this.app.id, head.host, head.target)
    if (!cached || !this.useCached(cached)) this.seek(this.parts.balance.waitMillis)
  }

  /** Sends it where a request like it was sent before. False when the client does not want that. */
  private useCached(cached: CachedReplay): boolean {
    const skips = cached.allowsBypass && fieldOf(this.head, 'fly-replay-cache-control') === 'skip'
    this.cacheStatus = `Fly-Replay-Cache-Status: ${skips ? 'bypass' : 'hit'}\r\n`
    const app = this.parts.table.apps.get(cached.appId)
    if (skips || app?.orgId !== this.app.orgId) return false
    this.cached = { entry: cached, through: this.app, wish: this.wish }
    this.app = app
    this.wish = cached.wish
    this.seek(this.parts.balance.waitMillis)
    return true
  }

  /** Nobody is there any more: the app itself has to say where such requests go now. */
  private dropCached({ entry, through, wish }: NonNullable<AppExchange['cached']>): void {
    this.parts.replays.remove(through.id, entry)
    this.cached = undefined
    this.cacheStatus = ''
    this.app = through
    this.wish = wish
    this.seek(this.parts.balance.waitMillis)
  }

  /** Looks for a machine within this time. */
  private seek(millis: number): void {
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

  protected requestText(): string {
    let added = `Fly-Region: ${this.parts.region}\r\n${this.replaySource}${this.cacheStatus}`
    const { wish, target } = this
    if (wish?.prefersInstance && target?.machineId !== wish.prefersInstance) {
      added += `Fly-Preferred-Instance-Unavailable: ${wish.prefersInstance}\r\n`
    }
    const options = { id: this.id, withoutAuthorization: false, keepAlive: true, added }
    return requestText(this.requestHead, this.client.peer, options)
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

  protected override takeAnswer(response: ResponseHead, rest: Buffer): boolean {
    if (this.target) this.target.failures = 0
    if (this.isFinal) return false
    const { fields } = response
    let text: string | undefined
    let hasCache = false
    for (let index = 1; index < fields.length; index += 3) {
      const name = fields[index]!
      if (name === replayField) text = fields[index + 1]
      else if (name === 'fly-replay-cache') hasCache = true
      else if (name === 'content-type' && fields[index + 1]!.startsWith(replayType)) {
        this.collectReplay(response, rest)
        return true
      }
    }
    const order = hasCache ? this.readCache(response) : undefined
    if (order?.invalidates && this.cached) this.parts.replays.remove(this.cached.through.id, this.cached.entry)
    if (text === undefined) return false
    this.takeReplay(() => parseReplay(text), this.giveBack(response, rest), order)
    return true
  }

  private readCache(response: ResponseHead): CacheOrder | undefined {
    const value = (name: string) => fieldOf(response, name)
    const [ttl, bypass] = [value('fly-replay-cache-ttl-secs'), value('fly-replay-cache-allow-bypass')]
    return readCacheOrder(value('fly-replay-cache'), ttl, bypass, this.head.host)
  }

  /** The program behind is done with this request. Its connection is used again when that is certain. */
  private giveBack(response: ResponseHead, rest: Buffer): Upstream | undefined {
    const isWhole = response.keepAlive && response.body >= 0 && rest.length === response.body && this.requestBody.done
    return isWhole ? this.upstream : undefined
  }

  private collectReplay(response: ResponseHead, rest: Buffer): void {
    const pieces: Buffer[] = []
    let bytes = 0
    this.collectBody(
      response,
      rest,
      (piece) => {
        bytes += piece.length
        if (bytes > maxReplayJsonBytes) this.fail(badReplay(new BadReplay('the body is too long')))
        else pieces.push(piece)
      },
      () => this.takeReplay(() => parseReplayJson(Buffer.concat(pieces).toString()), undefined, undefined),
    )
  }

  private takeReplay(read: () => Replay, reusable: Upstream | undefined, given: CacheOrder | undefined): void {
    const { target: source, app, upstream } = this
    let replay: Replay
    try {
      replay = read()
    } catch (error) {
      if (!(error instanceof BadReplay)) throw error
      this.fail(badReplay(error))
      return
    }
    if (this.head.body !== 0 && this.kept === undefined) {
      this.fail(new Refusal(502, 'replay_failed', 'the body of the request is above 1 MB and cannot be sent again'))
      return
    }
    this.replays += 1
    if (this.replays > maxReplays) {
      this.fail(new Refusal(502, 'replay_loop', `the request was replayed more than ${maxReplays} times`))
      return
    }
    this.takeBack()
    if (reusable) this.parts.pool.give(reusable)
    else upstream?.socket.destroy()
    const { cache } = replay
    const order = cache ? readCacheOrder(cache.prefix, cache.seconds, cache.bypass, this.head.host) : given
    this.replay({ replay, source: source!, app, began: Date.now() }, order)
  }

  private replay(replaying: Replaying, order: CacheOrder | undefined): void {
    const { replay, source } = replaying
    this.replaying = replaying
    this.replaySource = sourceText(replaying)
    this.requestHead = replay.transform ? transformed(this.head, replay.transform) : this.head
    this.wish = {
      instance: replay.instance,
      prefersInstance: replay.preferInstance,
      regions: replay.regions,
      except: replay.elsewhere ? source.machineId : undefined,
    }
    const app = replay.app === undefined ? replaying.app : this.parts.table.apps.findName(replay.app)
    // Apps of others are as if they were not there.
    if (!app || app.orgId !== replaying.app.orgId) {
      const message = `there is no app ${replay.app} to which ${replaying.app.name} could lead requests`
      this.noneFound(new NoCandidate(502, 'replay_failed', message))
      return
    }
    this.cached = undefined
    this.cacheStatus = order?.prefix === undefined ? '' : 'Fly-Replay-Cache-Status: miss\r\n'
    if (order?.prefix !== undefined) this.keepReplay(replaying.app, app, order.prefix, order)
    this.app = app
    this.seek(Math.min(replay.timeoutMillis ?? this.parts.balance.waitMillis, this.parts.balance.waitMillis))
  }

  private keepReplay(through: AppRoute, app: AppRoute, prefix: string, order: CacheOrder): void {
    const { seconds, allowsBypass } = order
    const until = Date.now() + seconds * 1000
    const entry = { prefix, host: this.head.host, appId: app.id, wish: this.wish!, allowsBypass, until }
    this.parts.replays.put(through.id, entry)
  }

  /** No machine takes it: the source of the replay gets it back if it wanted to, else the client hears of it. */
  private noneFound(error: unknown, reason = 'no_candidate'): void {
    if (this.isOver) return
    const { replaying, cached } = this
    if (cached && error instanceof NoCandidate) {
      this.dropCached(cached)
      return
    }
    if (!(error instanceof NoCandidate) || !replaying?.replay.fallback) {
      this.fail(error)
      return
    }
    this.replaying = undefined
    this.isFinal = true
    this.replaySource = failedText(replaying, reason)
    this.requestHead = this.head
    this.app = replaying.app
    const { machineId } = replaying.source
    this.wish = replaying.replay.fallback === 'force_self' ? { instance: machineId } : { prefersInstance: machineId }
    this.seek(this.parts.balance.waitMillis)
  }
}

function badReplay(error: BadReplay): Refusal {
  return new Refusal(502, 'bad_gateway', `the program asks for a replay that is not in order: ${error.message}`)
}
