import type { BoxSpec } from '../../../model/sandbox/box.ts'
import type { Service, ServiceDefinition } from '../../../model/sandbox/service.ts'
import type { ServiceProcess } from '../../../model/sandbox/service-state.ts'

export interface BoxServices {
  /** Reads the files of the supervisor; it starts no process. */
  inspectService(boxId: string, service: Pick<Service, 'name' | 'health'>): ServiceProcess
  /** Writes the files of the service. A running process is not restarted. */
  ensureDefinition(box: BoxSpec, service: Service, environment: Record<string, string>): void
  /** Sets the order in which services end when the box stops. To be called with all services after every change. */
  setOrder(box: BoxSpec, services: readonly ServiceDefinition[]): void
  /** Resets the restart count and starts the service. When this resolves, it has started, and may have ended again. */
  startService(box: BoxSpec, name: string): Promise<void>
  /** Ends the back-off of a failed service, so that it restarts at once. The restart count is kept. */
  hurryService(boxId: string, name: string): void
  /** Ends all processes of the service. With `stay` it is not started with the box either. */
  stopService(box: BoxSpec, name: string, options: { timeoutMs?: number; stay: boolean }): Promise<void>
  /** False when the service has no process. */
  signalService(box: BoxSpec, name: string, signal: number): Promise<boolean>
  /** Removes processes, definition and logs of the service. */
  removeService(box: BoxSpec, name: string): Promise<void>
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
