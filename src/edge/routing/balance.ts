// Which machine of an app a request goes to. Those below their soft limit first, the least loaded of them; then those
// below their hard limit; then it waits. Machines that sleep are woken when there is nobody else to take requests.
import { fitsRegion } from '../../model/account/region.ts'
import { Refusal } from '../http/answer.ts'
import type { AppRoute, Target } from './app.ts'
import type { AppPort } from './app-port.ts'
import type { Permits } from './permit.ts'
import type { AppTable } from './route.ts'

/** What is asked of the machine beside the port. */
export interface Wish {
  /** No other machine will do. */
  instance?: string | undefined
  /** This one if it can be had. */
  prefersInstance?: string | undefined
  /** Codes and aliases, in order of preference; the first that has a machine which can be had. */
  regions?: string[] | undefined
  /** Another region will do as well. */
  anyRegion?: boolean
  /** Not this one. */
  except?: string | undefined
}

export interface BalanceOptions {
  apps: AppTable
  /** Asks the platform to start a machine. */
  wake(machineId: string): Promise<void>
  /** For small limits, where there are several workers. */
  permits?: Permits | undefined
  /** For how long a request waits for a machine. */
  waitMillis?: number
}

/** A request that waits: it is asked to try again, and says whether it got away. */
export interface Waiter {
  appId: string
  deadline: number
  attempt(): boolean
  giveUp(): void
}

/** A place at a target, of one request. */
export interface Seat {
  target: Target
  appId: string
  isLeft: boolean
  hasPermit: boolean
}

const defaultWaitMillis = 30_000
// What nobody tells of, such as a program that listens at last, is found by looking.
const lookMillis = 25
const maxWaiting = 2_000
const wakeAgainMillis = 1_000
const firstBadMillis = 10
const longestBadMillis = 500
const fullMillis = 250

export class Balance {
  readonly waitMillis: number
  private readonly apps: AppTable
  private readonly wakeMachine: BalanceOptions['wake']
  private readonly permits: Permits | undefined
  private readonly queues = new Map<string, Waiter[]>()
  private readonly woken = new Map<string, number>()
  private timer: NodeJS.Timeout | undefined
  private turn = 0

  constructor({ apps, wake, permits, waitMillis = defaultWaitMillis }: BalanceOptions) {
    this.apps = apps
    this.wakeMachine = wake
    this.permits = permits
    this.waitMillis = waitMillis
  }

  /** Undefined when none can be had at the moment. Throws when none will be. */
  pick(app: AppRoute, port: AppPort, wish: Wish | undefined): Target | undefined {
    const { targets } = port
    const only = targets.length === 1 && !wish ? targets[0]! : undefined
    if (only && only.load < only.softLimit && isFree(only, Date.now())) return only
    const wished = wish ? wishedOf(targets, wish) : targets
    const best = wish ? this.bestOfWish(wished, wish) : this.best(wished)
    if (!best || best.load >= best.softLimit) this.wakeOne(app, wished)
    if (!best && !wished.some(isComing)) throw noneOf(app, port, wish, wished)
    return best
  }

  private bestOfWish(targets: Target[], wish: Wish): Target | undefined {
    const preferred = wish.prefersInstance && targets.find(({ machineId }) => machineId === wish.prefersInstance)
    if (preferred && isFree(preferred, Date.now())) return preferred
    if (!wish.regions) return this.best(targets)
    for (const asked of wish.regions) {
      const found = this.best(targets.filter(({ region }) => fitsRegion(region, asked)))
      if (found) return found
    }
    return wish.anyRegion ? this.best(targets) : undefined
  }

  /** The least loaded of those below their soft limits, else of all; equals take turns. */
  private best(targets: Target[]): Target | undefined {
    const now = Date.now()
    let best: Target | undefined
    this.turn += 1
    for (let index = 0; index < targets.length; index++) {
      const target = targets[(index + this.turn) % targets.length]!
      if (isFree(target, now) && (!best || isBetter(target, best))) best = target
    }
    return best
  }

  /** Takes a place. `ready` is called when it is certain, at once unless others have to be asked. */
  take(app: AppRoute, target: Target, ready: () => void, refused: () => void): Seat {
    target.load += 1
    if (target.load > target.peak) target.peak = target.load
    const seat: Seat = { target, appId: app.id, isLeft: false, hasPermit: false }
    if (!target.isCounted || !this.permits) ready()
    else this.ask(this.permits, seat, ready, refused)
    return seat
  }

  private ask(permits: Permits, seat: Seat, ready: () => void, refused: () => void): void {
    const { target } = seat
    permits.acquire(target.key, target.hardLimit).then((granted) => {
      target.fullUntil = granted ? 0 : Date.now() + fullMillis
      seat.hasPermit = granted && !seat.isLeft
      if (seat.isLeft && granted) permits.release(target.key)
      if (!seat.isLeft) (granted ? ready : refused)()
    })
  }

  /** What it had is free for whoever waits. */
  leave(seat: Seat): void {
    if (seat.isLeft) return
    seat.isLeft = true
    seat.target.load -= 1
    if (seat.hasPermit) this.permits?.release(seat.target.key)
    const queue = this.queues.get(seat.appId)
    if (queue) this.serve(seat.appId, queue, true)
  }

  /** There is a place again, by the word of the process above. */
  freed(key: string): void {
    const app = this.apps.findKey(key)
    for (const target of app?.targets ?? []) if (target.key === key) target.fullUntil = 0
    this.look()
  }

  failed(target: Target): void {
    target.failures += 1
    target.badUntil = Date.now() + Math.min(firstBadMillis * 2 ** target.failures, longestBadMillis)
  }

  succeeded(target: Target): void {
    target.failures = 0
  }

  wait(waiter: Waiter): void {
    const queue = this.queues.get(waiter.appId) ?? []
    if (queue.length >= maxWaiting) {
      waiter.giveUp()
      return
    }
    queue.push(waiter)
    this.queues.set(waiter.appId, queue)
    this.timer ??= setInterval(() => this.look(), lookMillis)
  }

  cancel(waiter: Waiter): void {
    const queue = this.queues.get(waiter.appId)
    const at = queue?.indexOf(waiter) ?? -1
    if (at >= 0) queue!.splice(at, 1)
  }

  /** Something has changed. */
  look(): void {
    const now = Date.now()
    for (const [id, queue] of this.queues) {
      for (const waiter of queue.filter(({ deadline }) => deadline <= now)) {
        this.cancel(waiter)
        waiter.giveUp()
      }
      this.serve(id, queue, false)
    }
    if (this.queues.size === 0) {
      clearInterval(this.timer)
      this.timer = undefined
    }
  }

  /** In the order in which they came; those whom nothing suits are passed over. */
  private serve(appId: string, queue: Waiter[], isOne: boolean): void {
    for (const waiter of [...queue]) {
      if (!waiter.attempt()) continue
      this.cancel(waiter)
      if (isOne) break
    }
    if (queue.length === 0) this.queues.delete(appId)
  }

  /** One at a time: the next when this one runs and is not enough. All workers choose the same. */
  private wakeOne(app: AppRoute, wished: Target[]): void {
    if (wished.some(({ isRising, isCordoned }) => isRising && !isCordoned)) return
    const asleep = wished.find((target) => maySleepOn.has(target.state) && target.autostarts && !target.isCordoned)
    if (!asleep || Date.now() - (this.woken.get(app.id) ?? 0) < wakeAgainMillis) return
    this.woken.set(app.id, Date.now())
    // A database that is away does not keep machines from coming back by themselves.
    this.wakeMachine(asleep.machineId).catch(() => undefined)
  }

  /** The most that each machine had under way since the last call, and the targets of none are left out. */
  takePeaks(): Map<string, number> {
    const peaks = new Map<string, number>()
    for (const app of this.apps.all()) {
      for (const target of app.targets) {
        if (target.peak > 0) peaks.set(target.machineId, (peaks.get(target.machineId) ?? 0) + target.peak)
        target.peak = target.load
      }
    }
    return peaks
  }

  close(): void {
    clearInterval(this.timer)
  }
}

const maySleepOn = new Set(['stopped', 'suspended'])
const onItsWay = new Set(['starting', 'restarting', 'replacing'])
const onItsWayDown = new Set(['stopped', 'suspended', 'stopping', 'suspending'])

function isFree(target: Target, now: number): boolean {
  if (!target.isOpen || target.load >= target.hardLimit || target.fullUntil > now) return false
  return target.failures === 0 || target.badUntil <= now
}

function isBetter(target: Target, than: Target): boolean {
  const [over, thanOver] = [target.load >= target.softLimit, than.load >= than.softLimit]
  if (over !== thanOver) return thanOver
  return target.load < than.load
}

/** It will take requests in a while, or may. */
function isComing({ state, isCordoned, autostarts }: Target): boolean {
  if (isCordoned) return false
  return state === 'started' || onItsWay.has(state) || (autostarts && onItsWayDown.has(state))
}

function wishedOf(targets: Target[], wish: Wish): Target[] {
  return targets.filter(
    ({ machineId, region }) =>
      machineId !== wish.except &&
      (wish.instance === undefined || machineId === wish.instance) &&
      (!wish.regions || wish.anyRegion || wish.regions.some((asked) => fitsRegion(region, asked))),
  )
}

/** A refusal that other machines, or the source of a replay, may still make good. */
export class NoCandidate extends Refusal {}

function noneOf(app: AppRoute, port: AppPort, wish: Wish | undefined, wished: Target[]): NoCandidate {
  if (wish && wished.length === 0) {
    return new NoCandidate(503, 'no_candidate', `no machine of ${app.name} on port ${port.port} is what was asked for`)
  }
  return new NoCandidate(
    503,
    'unavailable',
    `no machine of ${app.name} runs for port ${port.port}, and none may be started`,
  )
}
