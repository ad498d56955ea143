import type { Peer } from '../types.ts'
import { type AppRoute, findPort } from './app.ts'
import type { AppPort } from './app-port.ts'
import type { AppTable } from './app-table.ts'
import {
  isStopped,
  type LoadBalancer,
  type MachineSelector,
  NoCandidate,
  type Reservation,
  type Waiter,
} from './balancer.ts'
import type { Target } from './target.ts'

export interface SearchContext {
  apps: AppTable
  balancer: LoadBalancer
  edgePort: number
}

/** Why no machine was found, as the Fly-Replay-Failed header names it. */
export type SearchFailure = 'no_candidate' | 'timeout' | 'retries_exhausted'

/** The request or connection that a machine is searched for. */
export interface SearchUser {
  readonly peer: Pick<Peer, 'port' | 'secure'>
  readonly isOver: boolean
  /** False when the port cannot serve this user. */
  accepts(port: AppPort): boolean
  /** A machine is reserved; it stays reserved until `release`. */
  connect(target: Target, port: AppPort): void
  onWait(): void
  onNoMachine(error: unknown, reason: SearchFailure): void
}

/** Finds a machine of an app, waits in the queue of the app if necessary, and reserves it. */
export class MachineSearch {
  app: AppRoute
  selector: MachineSelector | undefined
  private readonly context: SearchContext
  private readonly user: SearchUser
  private port: AppPort | undefined
  private deadline = 0
  private chosen: Target | undefined
  private reservation: Reservation | undefined
  private waiter: Waiter | undefined

  constructor(context: SearchContext, user: SearchUser, app: AppRoute) {
    this.context = context
    this.user = user
    this.app = app
  }

  /** The machine that is reserved now. */
  get target(): Target | undefined {
    return this.chosen
  }

  start(timeoutMs: number): void {
    this.deadline = Date.now() + timeoutMs
    this.search()
  }

  /** Searches again after a machine has failed, until the deadline. */
  retry(): void {
    this.release()
    if (Date.now() < this.deadline) this.search()
    else this.user.onNoMachine(new NoCandidate(503, 'unavailable', this.explainTimeout()), 'retries_exhausted')
  }

  private search(): void {
    try {
      if (this.attempt()) return
    } catch (error) {
      this.user.onNoMachine(error, 'no_candidate')
      return
    }
    this.wait()
  }

  private wait(): void {
    this.user.onWait()
    const waiter: Waiter = {
      appId: this.app.id,
      deadline: this.deadline,
      attempt: () => this.attemptFromQueue(),
      giveUp: () => this.user.onNoMachine(new NoCandidate(503, 'unavailable', this.explainTimeout()), 'timeout'),
    }
    this.waiter = waiter
    this.context.balancer.enqueue(waiter)
  }

  private attemptFromQueue(): boolean {
    try {
      return this.attempt()
    } catch (error) {
      // Deferred, because it may change the queue that is being iterated.
      queueMicrotask(() => this.user.onNoMachine(error, 'no_candidate'))
      return true
    }
  }

  /** Returns false when no machine is available yet. */
  private attempt(): boolean {
    const { user } = this
    if (user.isOver) return true
    const { apps, balancer, edgePort } = this.context
    const app = apps.get(this.app.id)
    const port = app && findPort(app, user.peer.port, user.peer.secure, edgePort)
    if (!port || !user.accepts(port)) {
      throw new NoCandidate(404, 'not_found', `the app ${this.app.name} offers no such service on this port`)
    }
    this.app = app
    this.port = port
    const target = balancer.pick(app, port, this.selector)
    if (!target) return false
    this.waiter = undefined
    this.reserve(target, port)
    return true
  }

  private reserve(target: Target, port: AppPort): void {
    const { balancer } = this.context
    this.chosen = target
    const ready = () => this.user.connect(target, port)
    const reservation = balancer.reserve(this.app, target, ready, () => this.retry())
    // The user may have released the target before `reserve` returned.
    if (this.chosen === target) this.reservation = reservation
    else balancer.release(reservation)
  }

  /** Gives up the reservation and the place in the queue. */
  release(): void {
    const { reservation, waiter } = this
    this.chosen = undefined
    this.reservation = undefined
    this.waiter = undefined
    if (waiter) this.context.balancer.cancel(waiter)
    if (reservation) this.context.balancer.release(reservation)
  }

  private explainTimeout(): string {
    const { targets = [] } = this.port ?? {}
    const waited = `within ${this.context.balancer.waitTimeoutMs / 1000} s`
    if (targets.some(({ isOpen, load, hardLimit }) => isOpen && load >= hardLimit)) {
      return `all machines of ${this.app.name} were at their hard limits, and none became free ${waited}`
    }
    if (targets.some(({ isOpen }) => isOpen)) return `no machine of ${this.app.name} took a connection ${waited}`
    if (targets.some(({ state, isCordoned }) => state === 'started' && !isCordoned)) {
      return `no machine of ${this.app.name} passed its checks ${waited}`
    }
    if (targets.some((target) => isStopped(target) && target.autostarts && !target.isCordoned)) {
      const advice = 'the control plane, which starts machines, may be down'
      return `no stopped machine of ${this.app.name} was started ${waited}; ${advice}`
    }
    return `no machine of ${this.app.name} was available ${waited}`
  }
}
