import type { Toolchain } from '../../../model/postgres/toolchain.ts'

export interface DrillSpec {
  toolchain: Toolchain
  uid?: number | undefined
  port: number
  /** The query of the owner, if there is one. */
  query: string | null
  /** The `cgroup.procs` files that the processes join. */
  cgroup?: string[] | undefined
}

export type PagesState = { is: 'absent' } | { is: 'running' } | { is: 'passed' } | { is: 'failed'; reason: string }

type ContentsState =
  | Exclude<PagesState, { is: 'passed' }>
  /** The answer is null if the owner has no query. */
  | { is: 'passed'; answer: string | null }

export interface DrillDriver {
  /** Verifies the checksum of every page of a stopped server. Does nothing if that runs or has run. */
  startPages(id: string, spec: DrillSpec): Promise<void>
  inspectPages(id: string): Promise<PagesState>
  /** Checks tables and indexes of a server that runs or is starting, and runs the query of the owner. */
  startContents(id: string, spec: DrillSpec): Promise<void>
  inspectContents(id: string, spec: DrillSpec): Promise<ContentsState>
  /** Ends both jobs. Their output is in the directory of the cluster and is removed with it. */
  remove(id: string): Promise<void>
}
