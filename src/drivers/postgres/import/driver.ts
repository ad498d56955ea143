// Imports of a database of another PostgreSQL server. Nothing that a tenant's server sends is parsed outside of a box,
// except answers of limited size to queries of the platform. Every method can be interrupted anywhere and called again.
import type { CopyFacts, ImportProgress, ImportSource, SourceExtension } from '../../../model/postgres/import.ts'
import type { Toolchain } from '../../../model/postgres/toolchain.ts'

/** The cluster that a database is imported into. */
export interface ImportSpec {
  toolchain: Toolchain
  uid?: number | undefined
  port: number
  cgroup?: string[] | undefined
}

/** One import: where from, and what it is called. */
export interface ImportTask {
  id: string
  source: ImportSource
  /** The addresses of the source that were checked. */
  addresses: string[]
  jobs: number
  live: boolean
}

export interface SourceFacts extends CopyFacts {
  /** What makes the import impossible; empty if nothing does. */
  problems: string[]
}

export type CopyState =
  /** Not started, or interrupted so that it has to start again. */
  { is: 'absent' } | ({ is: 'running' } & ImportProgress) | { is: 'done' } | { is: 'failed'; reason: string }

export type LiveState =
  | {
      is: 'running'
      lagBytes: number
      lagSeconds: number
      /** Attempts to apply a change that failed; the log of the cluster has the reason. */
      errors: number
      /** Set while no transaction of the source is writing: equal values mean that none did in between. */
      transaction: string | null
    }
  /** The copy cannot be completed any more. */
  | { is: 'lost'; reason: string }

/** The source refused or did not answer. The message is for the owner of the import. */
export class SourceError extends Error {
  override readonly name = 'SourceError'
  /** Whether another attempt may succeed. */
  readonly isTransient: boolean

  constructor(message: string, isTransient: boolean, cause?: unknown) {
    super(message, { cause })
    this.isTransient = isTransient
  }
}

/** All methods but `resolve` take the id of the cluster first. */
export interface ImportDriver {
  /** Returns the addresses of the source. Throws a SourceError unless all of them may be connected to. */
  resolve(source: ImportSource): Promise<string[]>
  /** Starts the forwarder, through which everything else reaches the source. */
  ensureForwarder(id: string, spec: ImportSpec, task: ImportTask): Promise<void>
  inspectSource(id: string, spec: ImportSpec, task: ImportTask): Promise<SourceFacts>
  /** Why the database cannot be replaced; undefined if it can. */
  findTargetProblem(id: string, database: string): Promise<string | undefined>
  /** Dumps the source. Of a live import, first creates the publication and the slot that the dump starts from. */
  startDump(id: string, spec: ImportSpec, task: ImportTask): Promise<void>
  inspectDump(id: string): Promise<CopyState>
  /** Restores the dump into a new database, with the extensions of the source. */
  startRestore(id: string, spec: ImportSpec, task: ImportTask, extensions: SourceExtension[]): Promise<void>
  inspectRestore(id: string): Promise<CopyState>
  /** Whether the server can run subscriptions, which requires a restart. */
  canSubscribe(id: string): Promise<boolean>
  subscribe(id: string, spec: ImportSpec, task: ImportTask): Promise<void>
  inspectLive(id: string, spec: ImportSpec, task: ImportTask): Promise<LiveState>
  /** Copies the current values of all sequences, which logical replication does not. Nothing happens without a copy. */
  copySequences(id: string, spec: ImportSpec, task: ImportTask): Promise<void>
  /** Drops the subscription without touching the source. */
  unsubscribe(id: string): Promise<void>
  /** Ends the jobs, which keep the slot busy. */
  stopJobs(id: string): Promise<void>
  /** Drops the slot and the publication. */
  cleanSource(id: string, spec: ImportSpec, task: ImportTask): Promise<void>
  /** Replaces the database by the copy. Does nothing if that has happened. */
  replaceTarget(id: string, database: string): Promise<void>
  /** Drops the copy and the role. */
  dropCopy(id: string): Promise<void>
  /** Ends all processes of the import and removes its files. */
  remove(id: string): Promise<void>
}
