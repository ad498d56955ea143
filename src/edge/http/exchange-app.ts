import { type AppRoute, findPort, mayReplay } from '../routing/app.ts'
import type { AppPort } from '../routing/app-port.ts'
import { NoCandidate, type Wish } from '../routing/balance.ts'
import { BadReplay, parseReplay, parseReplayJson, type Replay, replayField, replayType } from '../routing/replay.ts'
import { type CachedReplay, type CacheOrder, endOf, readCacheOrder } from '../routing/replay-cache.ts'
import { failedText, type Replaying, sourceText, transformed, wishOf } from '../routing/replay-request.ts'
import { type ReplaySession, sessionOf } from '../routing/replay-session.ts'
import { Refusal } from './answer.ts'
import type { ClientConnection, EdgeParts } from './client.ts'
import { MachineExchange } from './exchange-machine.ts'
import { isSecureRequest, requestText } from './forward.ts'
import { fieldOf, type RequestHead, type ResponseHead } from './message.ts'
import type { Upstream } from './upstream.ts'

const maxReplays = 10
const maxReplayJsonBytes = 65_536

/** A request for an app: one of its machines gets it, and may have it given to another. */
export class AppExchange extends MachineExchange {
  /** As it is sent, after a replay perhaps changed. */
  private requestHead: RequestHead
  private replays = 0
  private replaying: Replaying | undefined
  /** The answer is the last word, whatever it asks for. */
  private isFinal = false
  /** Of the replay that led here. */
  private replaySource = ''
  /** The replay of before that led here without the word of a program. */
  private cached: { forget(): void; through: AppRoute; wish: Wish | undefined } | undefined
  private cacheStatus: '' | 'hit' | 'miss' | 'bypass' = ''
  /** The others that go where this one is sent. */
  private session: ReplaySession | undefined

  constructor(client: ClientConnection, parts: EdgeParts, head: RequestHead, app: AppRoute, id: string) {
    super(client, parts, head, app, id)
    this.requestHead = head
  }

  start(): void {
    const { client, head } = this
    this.port = findPort(this.app, client.peer.port, client.peer.secure, this.parts.edgePort)
    if (!this.port?.http) {
      const lack = this.app.targets.length === 0 ? 'has no machine with a service yet' : 'offers no HTTP on this port'
      this.refuse(new Refusal(404, 'not_found', `the app ${this.app.name} ${lack}`))
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
    this.useCache(this.port)
    this.seek(this.parts.balance.waitMillis)
  }

  /** Has it go where a request like it was sent before. */
  private useCache({ sessions }: AppPort): void {
    const { replays } = this.parts
    const { app, head } = this
    const path = replays.find(app.id, head.host, head.target)
    if (path) {
      this.useCached(path, () => replays.remove(app.id, path))
      return
    }
    const session = sessions && sessionOf(sessions, app.id, head)
    if (!session) return
    this.session = session
    const kept = replays.findSession(session.key)
    if (kept) this.useCached(kept, () => replays.removeSession(session.key))
  }

  private useCached(kept: CachedReplay, forget: () => void): void {
    const app = this.parts.table.apps.get(kept.appId)
    if (!app || !mayReplay(this.app, app)) return
    if (kept.allowsBypass && fieldOf(this.head, 'fly-replay-cache-control') === 'skip') {
      this.cacheStatus = 'bypass'
      return
    }
    this.cacheStatus = 'hit'
    this.cached = { forget, through: this.app, wish: this.wish }
    this.app = app
    this.wish = kept.wish
  }

  /** Nobody is there any more: the app itself has to say where such requests go now. */
  private dropCached({ forget, through, wish }: NonNullable<AppExchange['cached']>): void {
    forget()
    this.cached = undefined
    this.cacheStatus = ''
    this.app = through
    this.wish = wish
    this.seek(this.parts.balance.waitMillis)
  }

  protected requestText(): string {
    const { wish, target, cacheStatus } = this
    let added = `Fly-Region: ${this.parts.region}\r\n${this.replaySource}`
    if (cacheStatus) added += `Fly-Replay-Cache-Status: ${cacheStatus}\r\n`
    if (wish?.prefersInstance && target?.machineId !== wish.prefersInstance) {
      added += `Fly-Preferred-Instance-Unavailable: ${wish.prefersInstance}\r\n`
    }
    const options = { id: this.id, withoutAuthorization: false, keepAlive: true, added }
    return requestText(this.requestHead, this.client.peer, options)
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
    if (order?.invalidates) this.cached?.forget()
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
    if (!app || !mayReplay(replaying.app, app)) {
      const message = `there is no app ${replay.app} to which ${replaying.app.name} could lead requests`
      this.noneFound(new NoCandidate(502, 'replay_failed', message))
      return
    }
    if (order?.invalidates) this.cached?.forget()
    this.cached = undefined
    // Who asks to be led another way changes nothing for others.
    if (this.cacheStatus !== 'bypass') this.cacheStatus = this.keepReplay(replaying, app.id, order) ? 'miss' : ''
    this.app = app
    this.seek(Math.min(replay.timeoutMillis ?? this.parts.balance.waitMillis, this.parts.balance.waitMillis))
  }

  /** Has requests like this one go to the same place for a while. False when nobody asks for that. */
  private keepReplay({ replay, app: through }: Replaying, appId: string, order: CacheOrder | undefined): boolean {
    const { replays } = this.parts
    const { session, wish } = this
    if (order?.prefix !== undefined) {
      const { prefix, seconds, allowsBypass } = order
      const entry = { appId, wish: wish!, allowsBypass, until: endOf(seconds) }
      replays.put(through.id, { ...entry, prefix, host: this.head.host })
      return true
    }
    if (!session || session.appId !== through.id || order?.invalidates || !isPlain(replay)) return false
    const { seconds, allowsBypass } = session.rule
    replays.putSession(session.key, { appId, wish: wish!, allowsBypass, until: endOf(seconds) })
    return true
  }

  /** No machine takes it: the source of the replay gets it back if it wanted to, else the client hears of it. */
  protected noneFound(error: unknown, reason = 'no_candidate'): void {
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

/** It says nothing that is meant for one request alone. */
function isPlain({ state, transform, timeoutMillis, fallback }: Replay): boolean {
  return state === undefined && !transform && timeoutMillis === undefined && !fallback
}

function badReplay(error: BadReplay): Refusal {
  return new Refusal(502, 'bad_gateway', `the program asks for a replay that is not in order: ${error.message}`)
}
