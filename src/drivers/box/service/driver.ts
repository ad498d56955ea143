import type { BoxSpec } from '../../../model/sandbox/box.ts'
import type { Service, ServiceDefinition } from '../../../model/sandbox/service.ts'
import type { ServiceProcess } from '../../../model/sandbox/service-state.ts'

export interface WantedService {
  name: string
  /** The row; undefined if there is none. */
  service: Service | undefined
  /** The environment of the sandbox, which the service gets at its next start. */
  environment: Record<string, string>
}

export interface BoxServices {
  /** Reads the files of the supervisor; it starts no process. */
  inspectService(boxId: string, service: Pick<Service, 'name' | 'health'>): ServiceProcess
  /**
   * Makes the service match its row: a process with another definition or of an earlier revision is replaced, and a service
   * that is not wanted is stopped, or removed if it has no row. Calls back when the former process has ended, or at once.
   * When this resolves, a wanted service has started, and may have ended again or wait for others.
   */
  ensureService(box: BoxSpec, wanted: WantedService, onDown?: () => void): Promise<void>
  /** True when `ensureService` has nothing to do. It starts no process. */
  isSettled(box: BoxSpec, service: Service, environment: Record<string, string>): boolean
  /** True when the files of the service are those of this definition and revision. */
  isCurrent(boxId: string, service: Service): boolean
  /** True when the programs in the box can write no more. */
  isDiskFull(boxId: string): boolean
  /** Sets the order in which services end when the box stops. To be called with all services after every change. */
  setOrder(box: BoxSpec, services: readonly ServiceDefinition[]): void
  /** Ends the back-off of a failed service, so that it restarts at once. The restart count is kept. */
  hurryService(boxId: string, name: string): void
  /** False when the service has no process. */
  signalService(box: BoxSpec, name: string, signal: number): Promise<boolean>
  listDefined(boxId: string): string[]
  openLog(boxId: string, name: string): ServiceLog
}

export type LogStream = 'stdout' | 'stderr'

export type LogItem =
  | { is: 'line'; stream: LogStream; timeMs: number; text: string }
  /** The process exited with this code; everything it printed to this stream comes before. */
  | { is: 'end'; stream: LogStream; code: number }
  /** Files were rotated away before the reader came to them. */
  | { is: 'gap'; stream: LogStream }

export interface ServiceLog {
  /** Starts with the next line that is printed. */
  fromNow(): LogReader
  /** Starts with the oldest line that is kept, or this many lines before the end. */
  fromBefore(lines?: number): Promise<LogReader>
  /** Starts a little before the first line that was printed after this time. */
  fromTime(timeMs: number): Promise<LogReader>
}

export interface LogReader {
  /** Reads the available lines of both streams in the order of time, up to about `bytes`. Does not wait for more. */
  read(bytes?: number): Promise<LogItem[]>
  close(): void
}
