import type { Micros } from '../../model/time.ts'

export type DumpState = { is: 'absent' } | { is: 'running' } | { is: 'failed'; reason: string } | { is: 'done' }

/** Dumps the state database into the repository. */
export interface StateDumpDriver {
  /** Does nothing if a dump runs or has ended. */
  startDump(): Promise<void>
  inspectDump(): Promise<DumpState>
  /** Moves a finished dump into the repository, removes the oldest ones there and then the job. */
  keepDump(): Promise<void>
  /** Removes a failed dump. */
  discardDump(): Promise<void>
  /** The time of the newest dump in the repository. */
  findNewest(): Promise<Micros | undefined>
}
