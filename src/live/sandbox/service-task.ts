import type { BoxSpec } from '../../drivers/box/driver.ts'
import type { BoxServices } from '../../drivers/box/service/service.ts'
import { keyedQueue } from '../../model/keyed-queue.ts'
import type { Service } from '../../model/sandbox/service.ts'

/** A change of one service, and what it is made with. */
export interface Change {
  driver: BoxServices
  box: BoxSpec
  /** Variables of the sandbox. */
  environment: Record<string, string>
  /** All of the sandbox. */
  services: Service[]
  service: Service
}

export interface ServiceEvent {
  type: 'started' | 'stdout' | 'stderr' | 'exit' | 'error' | 'stopping' | 'stopped' | 'gap' | 'complete'
  timestamp: number
  data?: string
  exit_code?: number
  log_files?: { stdout: string; stderr: string; combined: string }
}

/** Resolves when the listener can take more. */
export type Say = (events: ServiceEvent[]) => Promise<void>

/** What a caller is told while it happens. */
export type Telling = (say: Say, gone: AbortSignal) => Promise<void>

const tasks = keyedQueue()

/** One task of a service after the other. */
export function inTurn<T>(boxId: string, name: string, task: () => Promise<T>): Promise<T> {
  return tasks(`${boxId}/${name}`, task)
}
