// Connections to targets that may have to be started first. Only connecting is repeated; nothing of a request has been
// sent by then, so nothing can arrive twice.
import { setTimeout as sleep } from 'node:timers/promises'
import { Refusal } from '../http/answer.ts'
import type { Upstream, UpstreamPool } from '../http/upstream.ts'
import type { Route, RouteTable } from './route.ts'

export interface ReachOptions {
  table: RouteTable
  pool: UpstreamPool
  /** Asks the platform to start what a route leads to. */
  wake(route: Route): Promise<void>
  /** For how long a request waits for something that should run. */
  waitMillis?: number
}

export interface Reach {
  connect(route: Route): Promise<Upstream>
}

const defaultWaitMillis = 30_000
// A sandbox that has just been started may have programs that listen without being known for it.
const settleMillis = 3_000
// One that fails is started once more for a request, and has this long to come.
const failedMillis = 5_000
const firstPauseMillis = 5
const longestPauseMillis = 200
const wakeAgainMillis = 1_000
// Each look of the platform tells whether it is ready by now.
const lookAgainMillis = 250
const healthMillis = 2_000

export function createReach({ table, pool, wake, waitMillis = defaultWaitMillis }: ReachOptions): Reach {
  /** All requests that wait for one target wait together. */
  const waiting = new Map<string, Promise<void>>()
  /** When the platform's word that something is ready was last seen to be out of date. */
  const lost = new Map<string, number>()

  async function connect(asked: Route): Promise<Upstream> {
    const started = Date.now()
    for (;;) {
      const route = current(asked)
      if (!route.isCold && (pool.isReady(route) || (!route.service?.health && isKnownReady(route)))) {
        try {
          return await pool.connect(route)
        } catch {
          pool.setReady(route, false)
          noteLoss(route)
        }
      }
      // The wait that another request began may be nearly over; then it is begun again.
      if (Date.now() - started >= waitMillis) throw giveUp(route)
      await waitFor(route)
    }
  }

  function waitFor(route: Route): Promise<void> {
    const pending = waiting.get(route.id)
    if (pending) return pending
    const wait = untilReachable(route).finally(() => waiting.delete(route.id))
    waiting.set(route.id, wait)
    return wait
  }

  async function untilReachable(asked: Route): Promise<void> {
    const started = Date.now()
    let woken = 0
    let wasCold = false
    let pause = firstPauseMillis
    for (;;) {
      const route = current(asked)
      if (!route.isCold && (await isReachable(route))) return
      wasCold ||= route.isCold
      const waited = Date.now() - started
      if (waited >= mostMillis(route, wasCold)) throw giveUp(route)
      if (Date.now() - woken >= (isKnownReady(route) ? wakeAgainMillis : lookAgainMillis)) {
        woken = Date.now()
        // A database that is away does not keep a program from coming back by itself.
        await wake(route).catch(() => undefined)
      }
      await sleep(pause)
      pause = Math.min(pause * 1.5, longestPauseMillis)
    }
  }

  function mostMillis(route: Route, wasCold: boolean): number {
    if (route.service?.failure) return Math.min(failedMillis, waitMillis)
    if (route.service || route.isCold) return waitMillis
    return wasCold ? Math.min(settleMillis, waitMillis) : 0
  }

  /** Where the check is a command. It has to have passed since whatever ran there was last found gone. */
  function isKnownReady({ id, service }: Route): boolean {
    if (service?.readyAtMs === undefined) return true
    return service.readyAtMs !== null && service.readyAtMs > (lost.get(id) ?? 0)
  }

  function noteLoss({ id, service }: Route): void {
    if (service?.readyAtMs === undefined) lost.delete(id)
    else lost.set(id, Date.now())
  }

  async function isReachable(route: Route): Promise<boolean> {
    if (!isKnownReady(route)) return false
    try {
      const health = route.service?.health
      const upstream = await pool.connect(health ? { ...route, port: health.port } : route)
      if (!health) {
        pool.give(upstream)
        return true
      }
      const isReady = await askHealth(upstream, route, health.path)
      if (isReady) pool.setReady(route, true)
      return isReady
    } catch {
      noteLoss(route)
      return false
    }
  }

  /** As it is now: it may have been stopped, moved or deleted meanwhile. */
  function current(asked: Route): Route {
    const route = table.findSandbox(asked.host)
    if (route?.id !== asked.id) throw new Refusal(404, 'not_found', `there is no sandbox at ${asked.host}`)
    if (route.address === null) {
      throw new Refusal(
        503,
        'no_network',
        'sandboxes have no network on this machine, so nothing in them can be reached',
      )
    }
    if (route.service?.wanted === false) {
      const message = `the service ${route.service.name} of this sandbox was stopped, and is not started by a request`
      throw new Refusal(503, 'service_stopped', message)
    }
    return route
  }

  function giveUp(route: Route): Refusal {
    if (route.isCold) return new Refusal(503, 'unavailable', `the sandbox did not start within ${waitMillis / 1000} s`)
    if (!route.service) {
      return new Refusal(502, 'bad_gateway', `nothing in this sandbox listens on port ${route.port}`)
    }
    const { name, failure } = route.service
    if (failure) return new Refusal(503, 'service_failed', `the service ${name} of this sandbox fails: ${failure}`)
    const message = `the service ${name} did not answer on port ${route.port} within ${waitMillis / 1000} s`
    return new Refusal(503, 'service_unavailable', message)
  }

  return { connect }
}

/** Whether the answer says ready. The connection stays open for a moment, so that the target counts as connected. */
function askHealth(upstream: Upstream, route: Route, path: string): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const { socket } = upstream
  let text = ''
  const timer = setTimeout(() => resolve(false), healthMillis)
  upstream.user = {
    onUpstreamData(bytes) {
      text += bytes.toString('latin1', 0, 64)
      if (text.length >= 12) resolve(/^HTTP\/1\.[01] [23]/.test(text))
    },
    onUpstreamEnd: () => resolve(false),
    onUpstreamDrain() {},
    onUpstreamClose: () => resolve(false),
  }
  socket.write(`GET ${path} HTTP/1.1\r\nHost: ${route.host}\r\nUser-Agent: berth-edge\r\nConnection: close\r\n\r\n`)
  return promise.finally(() => {
    clearTimeout(timer)
    // Those that wait connect within this time, and readiness lasts as long as a connection does.
    setTimeout(() => socket.destroy(), 100).unref()
  })
}
