// Chooses the machine of an app for a request: the least loaded one below its soft limit, then one below its hard limit;
// otherwise the request waits. A stopped machine is started when no running one is below its soft limit.
import { fitsRegion } from '../../model/account/region.ts'
import { Refusal } from '../refusal.ts'
import type { AppRoute } from './app.ts'
import type { AppPort } from './app-port.ts'
import type { AppTable } from './app-table.ts'
import type { Permits } from './permit.ts'
import type { Target } from './target.ts'

/** Restricts which machines of an app may get a request. */
export interface MachineSelector {
  /** Only this machine. */
  instance?: string | undefined
  /** This machine if it is available. */
  preferredInstance?: string | undefined
  /** Region codes and aliases in order of preference. */
  regions?: string[] | undefined
  /** Machines of other regions are allowed when `regions` has none available. */
  anyRegion?: boolean
  /** Never this machine. */
  except?: string | undefined
}

export interface BalancerOptions {
  apps: AppTable
  /** Asks the control plane to start a machine. */
  wake(machineId: string): Promise<void>
  /** Absent when there is a single worker. */
  permits?: Permits | undefined
  /** A request waits this long for a machine. */
  waitTimeoutMs?: number
}

/** A request that waits for a machine. */
export interface Waiter {
  appId: string
  deadline: number
  /** Tries again; returns true when the request no longer waits. */
  attempt(): boolean
  giveUp(): void
}

/** Counts one request towards the load of a target until it is released. */
export interface Reservation {
  target: Target
  appId: string
  isReleased: boolean
  hasPermit: boolean
}

/** A refusal that can be avoided by another machine or by the fallback of a replay. */
export class NoCandidate extends Refusal {}

const defaultWaitTimeoutMs = 30_000
// Some changes cause no notification, such as a program that starts to listen, so waiting requests also poll.
const pollIntervalMs = 25
const maxWaiting = 2_000
const wakeIntervalMs = 1_000
const minBackoffMs = 10
const maxBackoffMs = 500
/** A target without a free permit is skipped for this time. */
const permitRetryMs = 250

export class LoadBalancer {
  readonly waitTimeoutMs: number
  private readonly apps: AppTable
  private readonly wakeMachine: BalancerOptions['wake']
  private readonly permits: Permits | undefined
  private readonly queues = new Map<string, Waiter[]>()
  private readonly lastWakes = new Map<string, number>()
  private pollTimer: NodeJS.Timeout | undefined
  private rotation = 0

  constructor({ apps, wake, permits, waitTimeoutMs = defaultWaitTimeoutMs }: BalancerOptions) {
    this.apps = apps
    this.wakeMachine = wake
    this.permits = permits
    this.waitTimeoutMs = waitTimeoutMs
  }

  /** Returns undefined when no machine is available now, and throws when none will be. */
  pick(app: AppRoute, port: AppPort, selector: MachineSelector | undefined): Target | undefined {
    const { targets } = port
    const only = targets.length === 1 && !selector ? targets[0]! : undefined
    if (only && only.load < only.softLimit && isAvailable(only, Date.now())) return only
    const eligible = selector ? selectTargets(targets, selector) : targets
    const best = selector ? this.bestSelected(eligible, selector) : this.best(eligible)
    if (!best || best.load >= best.softLimit) this.wakeOne(app, eligible)
    if (!best && !eligible.some(mayBecomeAvailable)) throw noCandidate(app, port, selector, eligible)
    return best
  }

  private bestSelected(targets: Target[], selector: MachineSelector): Target | undefined {
    const { preferredInstance, regions, anyRegion } = selector
    const preferred = preferredInstance && targets.find(({ machineId }) => machineId === preferredInstance)
    if (preferred && isAvailable(preferred, Date.now())) return preferred
    if (!regions) return this.best(targets)
    for (const wanted of regions) {
      const found = this.best(targets.filter(({ region }) => fitsRegion(region, wanted)))
      if (found) return found
    }
    return anyRegion ? this.best(targets) : undefined
  }

  /** The least loaded target below its soft limit, else the least loaded of all. Equals are chosen in turn. */
  private best(targets: Target[]): Target | undefined {
    const now = Date.now()
    let best: Target | undefined
    this.rotation += 1
    for (let index = 0; index < targets.length; index++) {
      const target = targets[(index + this.rotation) % targets.length]!
      if (isAvailable(target, now) && (!best || isBetter(target, best))) best = target
    }
    return best
  }

  /** Reserves a target. `ready` is called synchronously unless a permit has to be requested. */
  reserve(app: AppRoute, target: Target, ready: () => void, refused: () => void): Reservation {
    target.load += 1
    if (target.load > target.peak) target.peak = target.load
    const reservation: Reservation = { target, appId: app.id, isReleased: false, hasPermit: false }
    if (!target.needsPermit || !this.permits) ready()
    else this.requestPermit(this.permits, reservation, ready, refused)
    return reservation
  }

  private requestPermit(permits: Permits, reservation: Reservation, ready: () => void, refused: () => void): void {
    const { target } = reservation
    permits.acquire(target.key, target.hardLimit).then((granted) => {
      const { isReleased } = reservation
      target.fullUntil = granted ? 0 : Date.now() + permitRetryMs
      reservation.hasPermit = granted && !isReleased
      if (isReleased && granted) permits.release(target.key)
      if (!isReleased) (granted ? ready : refused)()
    })
  }

  /** Releases a reservation and lets one waiting request try. */
  release(reservation: Reservation): void {
    if (reservation.isReleased) return
    reservation.isReleased = true
    reservation.target.load -= 1
    if (reservation.hasPermit) this.permits?.release(reservation.target.key)
    const queue = this.queues.get(reservation.appId)
    if (queue) this.serveQueue(reservation.appId, queue, true)
  }

  /** The parent process reports that a permit for this target is free. */
  permitFreed(key: string): void {
    const app = this.apps.findKey(key)
    for (const target of app?.targets ?? []) if (target.key === key) target.fullUntil = 0
    this.retryWaiting()
  }

  connectFailed(target: Target): void {
    target.failures += 1
    target.backoffUntil = Date.now() + Math.min(minBackoffMs * 2 ** target.failures, maxBackoffMs)
  }

  connectSucceeded(target: Target): void {
    target.failures = 0
  }

  enqueue(waiter: Waiter): void {
    const queue = this.queues.get(waiter.appId) ?? []
    if (queue.length >= maxWaiting) {
      waiter.giveUp()
      return
    }
    queue.push(waiter)
    this.queues.set(waiter.appId, queue)
    this.pollTimer ??= setInterval(() => this.retryWaiting(), pollIntervalMs)
  }

  cancel(waiter: Waiter): void {
    const queue = this.queues.get(waiter.appId)
    const at = queue?.indexOf(waiter) ?? -1
    if (at >= 0) queue!.splice(at, 1)
  }

  /** Lets all waiting requests try again, and gives up those whose deadline has passed. */
  retryWaiting(): void {
    const now = Date.now()
    for (const [appId, queue] of this.queues) {
      for (const waiter of queue.filter(({ deadline }) => deadline <= now)) {
        this.cancel(waiter)
        waiter.giveUp()
      }
      this.serveQueue(appId, queue, false)
    }
    if (this.queues.size === 0) {
      clearInterval(this.pollTimer)
      this.pollTimer = undefined
    }
  }

  /** Serves requests in the order of arrival; one that no available machine fits does not block the others. */
  private serveQueue(appId: string, queue: Waiter[], isOnlyOne: boolean): void {
    for (const waiter of [...queue]) {
      if (!waiter.attempt()) continue
      this.cancel(waiter)
      if (isOnlyOne) break
    }
    if (queue.length === 0) this.queues.delete(appId)
  }

  /** Starts one machine at a time, and the next only if that one is not enough. All workers choose the same machine. */
  private wakeOne(app: AppRoute, eligible: Target[]): void {
    if (eligible.some(({ isRising, isCordoned }) => isRising && !isCordoned)) return
    const stopped = eligible.find((target) => isStopped(target) && target.autostarts && !target.isCordoned)
    if (!stopped || Date.now() - (this.lastWakes.get(app.id) ?? 0) < wakeIntervalMs) return
    this.lastWakes.set(app.id, Date.now())
    // A failure is ignored: the machine may start for another reason, and the next attempt tries again.
    this.wakeMachine(stopped.machineId).catch(() => undefined)
  }

  /** The highest load of each machine since the last call, without machines that had none. */
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
    clearInterval(this.pollTimer)
  }
}

const stoppedStates = new Set(['stopped', 'suspended'])

export function isStopped({ state }: Target): boolean {
  return stoppedStates.has(state)
}

const startingStates = new Set(['starting', 'restarting', 'replacing'])
const restartableStates = new Set(['stopped', 'suspended', 'stopping', 'suspending'])

function isAvailable(target: Target, now: number): boolean {
  if (!target.isOpen || target.load >= target.hardLimit || target.fullUntil > now) return false
  return target.failures === 0 || target.backoffUntil <= now
}

function isBetter(target: Target, other: Target): boolean {
  const [isOver, isOtherOver] = [target.load >= target.softLimit, other.load >= other.softLimit]
  if (isOver !== isOtherOver) return isOtherOver
  return target.load < other.load
}

function mayBecomeAvailable({ state, isCordoned, autostarts }: Target): boolean {
  if (isCordoned) return false
  return state === 'started' || startingStates.has(state) || (autostarts && restartableStates.has(state))
}

function selectTargets(targets: Target[], { instance, regions, anyRegion, except }: MachineSelector): Target[] {
  return targets.filter(
    ({ machineId, region }) =>
      machineId !== except &&
      (instance === undefined || machineId === instance) &&
      (!regions || anyRegion || regions.some((wanted) => fitsRegion(region, wanted))),
  )
}

function noCandidate(
  app: AppRoute,
  port: AppPort,
  selector: MachineSelector | undefined,
  eligible: Target[],
): NoCandidate {
  if (selector && eligible.length === 0) {
    const message = `no machine of ${app.name} on port ${port.port} matches the requested instance or region`
    return new NoCandidate(503, 'no_candidate', message)
  }
  const message = `no machine of ${app.name} runs for port ${port.port}, and none may be started`
  return new NoCandidate(503, 'unavailable', message)
}
