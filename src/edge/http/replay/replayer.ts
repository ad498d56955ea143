import { Refusal } from '../../refusal.ts'
import { type AppRoute, mayReplay } from '../../routing/app.ts'
import { NoCandidate } from '../../routing/balancer.ts'
import type { MachineSearch, SearchFailure } from '../../routing/machine-search.ts'
import type { SessionRule } from '../../routing/session-rule.ts'
import type { Target } from '../../routing/target.ts'
import type { HttpContext } from '../context.ts'
import type { Exchange } from '../exchange.ts'
import { fieldOf, type RequestHead, type ResponseHead } from '../message.ts'
import { BadReplay, parseReplay, parseReplayJson, type Replay, replayField, replayType } from './replay.ts'
import { type CacheDirective, parseCacheDirective } from './replay-cache.ts'
import { ReplayCacheUse } from './replay-cache-use.ts'
import { failureField, type OngoingReplay, sourceField, transformHead } from './replay-request.ts'

const maxReplays = 10
const maxReplayJsonBytes = 65_536

/** The request in the form that the next machine gets. */
interface Delivery {
  /** The head of the request, possibly changed by a replay. */
  head: RequestHead
  /** The Fly-Replay-Src or Fly-Replay-Failed field. */
  field: string
  replay: OngoingReplay | undefined
  /** The response is forwarded even if it asks for a replay. */
  isFinal: boolean
}

/** Gives a request to another machine when the response of a machine asks for that. */
export class Replayer {
  private readonly exchange: Exchange
  private readonly context: HttpContext
  private readonly search: MachineSearch
  private readonly cache: ReplayCacheUse
  private delivery: Delivery
  private count = 0

  constructor(exchange: Exchange, context: HttpContext, search: MachineSearch) {
    this.exchange = exchange
    this.context = context
    this.search = search
    this.cache = new ReplayCacheUse(context.replays, context.table.apps, exchange.head)
    this.delivery = { head: exchange.head, field: '', replay: undefined, isFinal: false }
  }

  /** The head of the request for the next machine. */
  get head(): RequestHead {
    return this.delivery.head
  }

  /** The header lines to add to it. */
  get fields(): string {
    return this.delivery.field + this.cache.statusField
  }

  /** Sends the request to where a cached replay of an earlier request went. */
  applyCache(sessions: SessionRule[] | undefined): void {
    const { search } = this
    const hit = this.cache.find(search.app, search.selector, sessions)
    if (!hit) return
    search.app = hit.app
    search.selector = hit.selector
  }

  /** Returns true if the response asks for a replay. */
  intercept(response: ResponseHead, rest: Buffer): boolean {
    if (this.delivery.isFinal) return false
    const { fields } = response
    let text: string | undefined
    let hasDirective = false
    for (let index = 1; index < fields.length; index += 3) {
      const name = fields[index]!
      if (name === replayField) text = fields[index + 1]
      else if (name === 'fly-replay-cache') hasDirective = true
      else if (name === 'content-type' && fields[index + 1]!.startsWith(replayType)) {
        this.collectJson(response, rest)
        return true
      }
    }
    const directive = hasDirective ? this.readDirective(response) : undefined
    if (directive?.invalidates) this.cache.invalidate()
    if (text === undefined) return false
    this.handle(() => parseReplay(text), this.isReusable(response, rest), directive)
    return true
  }

  private readDirective(response: ResponseHead): CacheDirective | undefined {
    const value = (name: string) => fieldOf(response, name)
    const [ttl, bypass] = [value('fly-replay-cache-ttl-secs'), value('fly-replay-cache-allow-bypass')]
    return parseCacheDirective(value('fly-replay-cache'), ttl, bypass, this.exchange.head.host)
  }

  /** True if the upstream has got the whole request and sent the whole response. */
  private isReusable(response: ResponseHead, rest: Buffer): boolean {
    const isComplete = response.body >= 0 && rest.length === response.body
    return response.keepAlive && isComplete && this.exchange.body.isDone
  }

  private collectJson(response: ResponseHead, rest: Buffer): void {
    this.exchange.collect(response, rest, {
      maxBytes: maxReplayJsonBytes,
      onComplete: (body) => this.handle(() => parseReplayJson(body.toString()), false, undefined),
      onTooLarge: () => this.exchange.fail(invalidReplay(new BadReplay('the body is too large'))),
    })
  }

  private handle(parse: () => Replay, isReusable: boolean, fromHeader: CacheDirective | undefined): void {
    const { exchange, search } = this
    const { target, app } = search
    let replay: Replay
    try {
      replay = parse()
    } catch (error) {
      if (!(error instanceof BadReplay)) throw error
      exchange.fail(invalidReplay(error))
      return
    }
    const refusal = this.checkLimits()
    if (refusal) {
      exchange.fail(refusal)
      return
    }
    this.leaveMachine(isReusable)
    const { cache } = replay
    const directive = cache
      ? parseCacheDirective(cache.prefix, cache.seconds, cache.bypass, exchange.head.host)
      : fromHeader
    this.begin({ replay, source: target!, app, startedAt: Date.now() }, directive)
  }

  private checkLimits(): Refusal | undefined {
    if (!this.exchange.body.canResend) {
      return new Refusal(502, 'replay_failed', 'the body of the request is above 1 MB and cannot be sent again')
    }
    this.count += 1
    if (this.count <= maxReplays) return undefined
    return new Refusal(502, 'replay_loop', `the request was replayed more than ${maxReplays} times`)
  }

  private leaveMachine(isReusable: boolean): void {
    const upstream = this.exchange.detach()
    this.search.release()
    if (upstream && isReusable) this.context.pool.give(upstream)
    else upstream?.socket.destroy()
  }

  private begin(ongoing: OngoingReplay, directive: CacheDirective | undefined): void {
    const { replay, source } = ongoing
    const { head } = this.exchange
    const { waitTimeoutMs } = this.context.balancer
    const changed = replay.transform ? transformHead(head, replay.transform) : head
    this.delivery = { head: changed, field: sourceField(ongoing), replay: ongoing, isFinal: false }
    this.search.selector = selectorOf(replay, source)
    const app = this.findApp(ongoing)
    if (!app) {
      const message = `the app ${ongoing.app.name} cannot replay requests to ${replay.app}: no such app`
      this.failSearch(new NoCandidate(502, 'replay_failed', message))
      return
    }
    this.cache.store(ongoing, { appId: app.id, selector: this.search.selector }, directive)
    this.search.app = app
    this.search.start(Math.min(replay.timeoutMs ?? waitTimeoutMs, waitTimeoutMs))
  }

  private findApp({ replay, app }: OngoingReplay): AppRoute | undefined {
    const found = replay.app === undefined ? app : this.context.table.apps.findName(replay.app)
    return found && mayReplay(app, found) ? found : undefined
  }

  private failSearch(error: NoCandidate): void {
    if (!this.exchange.isOver && !this.fallBack('no_candidate')) this.exchange.fail(error)
  }

  /**
   * Called when no machine takes the request. A cached replay is dropped, and the app itself decides again. A replay with a
   * fallback goes back to the machine that asked for it. Returns false in all other cases.
   */
  fallBack(reason: SearchFailure): boolean {
    const { search } = this
    const { waitTimeoutMs } = this.context.balancer
    const dropped = this.cache.dropHit()
    if (dropped) {
      search.app = dropped.app
      search.selector = dropped.selector
      search.start(waitTimeoutMs)
      return true
    }
    const { replay: ongoing } = this.delivery
    if (!ongoing?.replay.fallback) return false
    this.delivery = {
      head: this.exchange.head,
      field: failureField(ongoing, reason),
      replay: undefined,
      isFinal: true,
    }
    const { machineId } = ongoing.source
    search.app = ongoing.app
    search.selector =
      ongoing.replay.fallback === 'force_self' ? { instance: machineId } : { preferredInstance: machineId }
    search.start(waitTimeoutMs)
    return true
  }
}

function selectorOf(replay: Replay, source: Target) {
  return {
    instance: replay.instance,
    preferredInstance: replay.preferInstance,
    regions: replay.regions,
    except: replay.elsewhere ? source.machineId : undefined,
  }
}

function invalidReplay(error: BadReplay): Refusal {
  return new Refusal(502, 'bad_gateway', `the program asks for an invalid replay: ${error.message}`)
}
