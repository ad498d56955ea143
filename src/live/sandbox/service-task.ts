import type { BoxServices } from '../../drivers/box/service/driver.ts'
import { keyedQueue } from '../../model/keyed-queue.ts'
import type { BoxSpec } from '../../model/sandbox/box.ts'
import type { Service } from '../../model/sandbox/service.ts'

/** A change of one service, with everything that is needed to make it. */
export interface Change {
  driver: BoxServices
  box: BoxSpec
  /** The environment of the sandbox. */
  environment: Record<string, string>
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

const tasks = keyedQueue()

/** Runs the tasks of one service one after another. */
export function inTurn<T>(boxId: string, name: string, task: () => Promise<T>): Promise<T> {
  return tasks(`${boxId}/${name}`, task)
}
