import type { BoxServices } from '../../drivers/box/service/driver.ts'
import { type BoxSpec, boxSpec } from '../../model/sandbox/box.ts'
import type { Service } from '../../model/sandbox/service.ts'
import { inServiceTurn, withAllServices } from '../../store/sandbox/turn.ts'
import type { LiveContext } from '../context.ts'

/** A change of one service, with everything that is needed to follow it. */
export interface Change {
  driver: BoxServices
  box: BoxSpec
  /** All services of the sandbox. */
  services: Service[]
  service: Service
}

/** The service that is watched, and the driver to watch it with. */
export type Watched = Pick<Change, 'driver' | 'box' | 'service'>

export interface ServiceEvent {
  type: 'started' | 'stdout' | 'stderr' | 'exit' | 'error' | 'stopping' | 'stopped' | 'gap' | 'complete'
  timestamp: number
  data?: string
  exit_code?: number
  log_files?: { stdout: string; stderr: string; combined: string }
}

/** Sends events to a client. Resolves when the client can take more. */
export type SendEvents = (events: ServiceEvent[]) => Promise<void>

/** Sends events to a client until there are no more or the client has gone. */
export type ServiceEventStream = (send: SendEvents, gone: AbortSignal) => Promise<void>

export function serviceEvent(type: ServiceEvent['type'], more: Partial<ServiceEvent> = {}): ServiceEvent {
  return { type, timestamp: Date.now(), ...more }
}

/**
 * Makes a service match its row. What a caller wanted may have been changed by another one by then, so the row is returned.
 * Calls back when the former process has ended, or at once.
 */
export async function settleService(
  ctx: LiveContext,
  sandboxId: string,
  name: string,
  onDown?: () => void,
): Promise<Service | undefined> {
  const settled = await inServiceTurn(ctx, sandboxId, name, async ({ sandbox, service }) => {
    await ctx.services.ensureService(boxSpec(sandbox), { name, service, environment: sandbox.environment }, onDown)
  })
  await withAllServices(ctx, sandboxId, (sandbox, services) => ctx.services.setOrder(boxSpec(sandbox), services))
  return settled
}
