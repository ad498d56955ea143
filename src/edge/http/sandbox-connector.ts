// Connects to sandboxes, which may have to be started first. Only connecting is retried: nothing of the request has been
// sent by then, so nothing can arrive twice.
import { setTimeout as sleep } from 'node:timers/promises'
import { Refusal } from '../refusal.ts'
import type { SandboxRoute } from '../routing/sandbox.ts'
import type { RouteTable } from '../routing/table.ts'
import type { Upstream } from '../tcp/upstream.ts'
import type { UpstreamPool } from '../tcp/upstream-pool.ts'
import { isHealthy } from './health-check.ts'

export interface SandboxConnectorOptions {
  table: Pick<RouteTable, 'findSandbox'>
  pool: UpstreamPool
  /** Asks the control plane to start a sandbox. */
  wake(route: SandboxRoute): Promise<void>
  /** A request waits this long for a sandbox or service that should be running. */
  waitTimeoutMs?: number
}

const defaultWaitTimeoutMs = 30_000
// After the start of a sandbox without services, programs that nothing declares get this long to listen.
const settleMs = 3_000
// A request starts a failed service once more, and waits this long for it.
const failedServiceWaitMs = 5_000
const minPauseMs = 5
const maxPauseMs = 200
const wakeIntervalMs = 1_000
// Each wake-up also makes the control plane run a command check, so a service with one is polled more often.
const checkIntervalMs = 250

export class SandboxConnector {
  private readonly table: SandboxConnectorOptions['table']
  private readonly pool: UpstreamPool
  private readonly wake: SandboxConnectorOptions['wake']
  private readonly waitTimeoutMs: number
  private readonly commandChecks = new CommandChecks()
  /** Requests for the same sandbox share one wait. */
  private readonly waits = new Map<string, Promise<void>>()

  constructor({ table, pool, wake, waitTimeoutMs = defaultWaitTimeoutMs }: SandboxConnectorOptions) {
    this.table = table
    this.pool = pool
    this.wake = wake
    this.waitTimeoutMs = waitTimeoutMs
  }

  async connect(requested: SandboxRoute): Promise<Upstream> {
    const startedAt = Date.now()
    for (;;) {
      const route = this.getRoute(requested)
      if (this.shouldBeReachable(route)) {
        try {
          return await this.pool.connect(route)
        } catch {
          this.pool.setReady(route, false)
          this.commandChecks.connectFailed(route)
        }
      }
      // A shared wait may have timed out early for this request; then another one is started.
      if (Date.now() - startedAt >= this.waitTimeoutMs) throw unreachable(route, this.waitTimeoutMs)
      await this.wait(route)
    }
  }

  private shouldBeReachable(route: SandboxRoute): boolean {
    if (route.isCold) return false
    return this.pool.isReady(route) || (!route.service?.health && this.commandChecks.hasPassed(route))
  }

  private wait(route: SandboxRoute): Promise<void> {
    const pending = this.waits.get(route.id)
    if (pending) return pending
    const wait = this.waitUntilReachable(route).finally(() => this.waits.delete(route.id))
    this.waits.set(route.id, wait)
    return wait
  }

  private async waitUntilReachable(requested: SandboxRoute): Promise<void> {
    const startedAt = Date.now()
    let wokenAt = 0
    let wasCold = false
    let pauseMs = minPauseMs
    for (;;) {
      const route = this.getRoute(requested)
      if (!route.isCold && (await this.isReachable(route))) return
      wasCold ||= route.isCold
      if (Date.now() - startedAt >= this.maxWaitMs(route, wasCold)) throw unreachable(route, this.waitTimeoutMs)
      if (Date.now() - wokenAt >= (this.commandChecks.hasPassed(route) ? wakeIntervalMs : checkIntervalMs)) {
        wokenAt = Date.now()
        // A failure is ignored: the program may come back by itself, and the next round tries again.
        await this.wake(route).catch(() => undefined)
      }
      await sleep(pauseMs)
      pauseMs = Math.min(pauseMs * 1.5, maxPauseMs)
    }
  }

  private maxWaitMs({ service, isCold }: SandboxRoute, wasCold: boolean): number {
    const { waitTimeoutMs } = this
    if (service?.failure) return Math.min(failedServiceWaitMs, waitTimeoutMs)
    if (service || isCold) return waitTimeoutMs
    return wasCold ? Math.min(settleMs, waitTimeoutMs) : 0
  }

  private async isReachable(route: SandboxRoute): Promise<boolean> {
    const { pool } = this
    if (!this.commandChecks.hasPassed(route)) return false
    try {
      const health = route.service?.health
      const upstream = await pool.connect(health ? { ...route, port: health.port } : route)
      if (!health) {
        pool.give(upstream)
        return true
      }
      const isReady = await isHealthy(upstream, route.host, health.path)
      if (isReady) pool.setReady(route, true)
      return isReady
    } catch {
      this.commandChecks.connectFailed(route)
      return false
    }
  }

  /** The current route: the sandbox may have been stopped, moved or deleted since the request arrived. */
  private getRoute(requested: SandboxRoute): SandboxRoute {
    const route = this.table.findSandbox(requested.host)
    if (route?.id !== requested.id) throw new Refusal(404, 'not_found', `there is no sandbox at ${requested.host}`)
    if (route.address === null) {
      throw new Refusal(503, 'no_network', 'sandboxes on this host have no network and cannot be reached')
    }
    if (route.service?.wanted === false) {
      const message = `the service ${route.service.name} of this sandbox was stopped, and requests do not start it`
      throw new Refusal(503, 'service_stopped', message)
    }
    return route
  }
}

/**
 * Services whose health check is a command. The control plane runs it, so the last success may be from before the program
 * exited; it counts only if it is newer than the last failed connection.
 */
class CommandChecks {
  private readonly failedAt = new Map<string, number>()

  hasPassed({ id, service }: SandboxRoute): boolean {
    if (service?.readyAtMs === undefined) return true
    return service.readyAtMs !== null && service.readyAtMs > (this.failedAt.get(id) ?? 0)
  }

  connectFailed({ id, service }: SandboxRoute): void {
    if (service?.readyAtMs === undefined) this.failedAt.delete(id)
    else this.failedAt.set(id, Date.now())
  }
}

function unreachable({ isCold, service, port }: SandboxRoute, waitTimeoutMs: number): Refusal {
  const waited = `within ${waitTimeoutMs / 1000} s`
  if (isCold) return new Refusal(503, 'unavailable', `the sandbox did not start ${waited}`)
  if (!service) return new Refusal(502, 'bad_gateway', `nothing in this sandbox listens on port ${port}`)
  const { name, failure } = service
  if (failure) return new Refusal(503, 'service_failed', `the service ${name} of this sandbox fails: ${failure}`)
  return new Refusal(503, 'service_unavailable', `the service ${name} did not answer on port ${port} ${waited}`)
}
