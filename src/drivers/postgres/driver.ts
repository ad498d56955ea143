// The server of a managed cluster and the host it runs on. Every method can be interrupted anywhere and called again.
import type { PostgresMajor } from '../../model/postgres/cluster.ts'
import type { ClusterHost, ClusterSpec, DataSpec } from '../../model/postgres/spec.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import type { Lsn } from '../../model/postgres/wal.ts'
import type { ProbeTarget, Query, SqlAdmin, SqlClient } from './sql/driver.ts'

export type ClusterProcess =
  | { is: 'absent' }
  | { is: 'stopped'; log: string[] }
  | { is: 'starting'; pid: number }
  | { is: 'ready'; pid: number }

/** A process that belongs to a cluster besides its server. */
export type ServiceProcess = { is: 'absent' } | { is: 'stopped'; log: string[] } | { is: 'running'; pid: number }

export interface DataDirectories {
  /** What is missing of the data directory, as far as its most important files show; undefined if they exist. */
  findProblem(id: string): string | undefined
  /** Keeps the data directory under another name. Does nothing if that name exists or there is no data directory. */
  moveAside(id: string, name: string): void
  /** Removes the data directory. */
  discard(id: string): void
  /** The names of the directories that were moved aside. */
  listAside(id: string): string[]
  removeAside(id: string, names: string[]): void
}

export interface PostgresDriver extends SqlClient, SqlAdmin {
  /** The ids of all clusters that have files on this host. */
  list(): string[]
  /** Creates the data directory with a system identifier of its own, unless it exists. */
  ensureData(id: string, spec: DataSpec): Promise<void>
  /** Starts the server, or applies a changed spec to it; it restarts if a change requires that. Does not wait. */
  ensureRunning(id: string, spec: ClusterSpec): Promise<void>
  data: DataDirectories
  /** Reads the state of the process without connecting. */
  inspect(id: string): Promise<ClusterProcess>
  /** Polls until the server is ready or the timeout is over; returns the last state. */
  waitUntilReady(id: string, timeoutSeconds: number): Promise<ClusterProcess>
  /** Like `query`, but keeps its connection open. Meant for a single query that is repeated often and reads little. */
  watch: Query
  /** Connects as any client would; throws if there is no answer. */
  probe(target: ProbeTarget): Promise<void>
  /** The size of the data directory in bytes. Slow, because it visits every file. */
  measure(id: string, uid: number | undefined): Promise<number>
  stop(id: string): Promise<void>
  /** The position of the last checkpoint, as stored in the data directory; undefined without one. */
  findCheckpoint(id: string): Promise<Lsn | undefined>
  /** Stops the server and removes everything of the cluster; the files are deleted in the background. */
  remove(id: string): Promise<void>
}

export interface ToolchainNeeds {
  /** Extensions that the cluster is created with. */
  extensions?: string[]
  /** The installation that the cluster, or the one its data comes from, has had so far. It stays with that kind. */
  current?: { source: string } | null | undefined
}

/** The host that clusters run on. */
export interface Hosting extends ClusterHost {
  /** The address at which this host itself reaches the clusters. */
  localHost: string
  /** Ports that may be assigned. */
  ports: { first: number; last: number }
  /** Uids that may be assigned; undefined where all processes run as one user. */
  uids: { first: number; last: number } | undefined
  /** Finds the installation for a cluster. */
  findToolchain(major: PostgresMajor, needs?: ToolchainNeeds): Promise<Toolchain>
  /** True if the server programs of a recorded installation still exist. */
  isInstalled(toolchain: Pick<Toolchain, 'bin'>): boolean
  canBind(port: number): Promise<boolean>
  freeBytes(): Promise<number>
  /** Why the rules that keep the programs of clusters from the network of the host are not in force. */
  findFirewallProblem(): Promise<string | undefined>
  /** Creates the directory of a cluster so that its size can be limited. Must precede the first write to it. */
  ensureDisk(id: string): Promise<void>
  /**
   * Limits the disk of a cluster a bit above its size, where that is possible; far below, the platform makes it read-only.
   * `isFull` adds a reserve, with which PostgreSQL can recover and its user delete data.
   */
  ensureDiskLimit(id: string, diskSizeGb: number, isFull: boolean): Promise<void>
  removeLimits(id: string): Promise<void>
}
