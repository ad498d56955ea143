// Turns the row of a cluster into the specifications its server and its pooler run by.
import { type Cluster, type PoolMode, privateNames } from './cluster.ts'
import { findPlan, type Plan } from './plan.ts'
import type { Toolchain } from './toolchain.ts'

export interface DataSpec {
  toolchain: Toolchain
  /** The Unix user that owns the data directory; undefined where all processes run as one user. */
  uid?: number | undefined
}

export interface ClusterSpec extends DataSpec {
  plan: Plan
  diskSizeGb: number
  /** Addresses to listen on, comma-separated. */
  listen: string
  /** Host names for the server certificate. */
  hosts: string[]
  port: number
  /** The `cgroup.procs` files that the server joins. */
  cgroup?: string[] | undefined
  /** Settings that override those derived from the plan. */
  settings?: Record<string, string> | undefined
  /** Admits only the platform itself. Changing this needs no restart. */
  closed?: boolean | undefined
  /** Whether it may subscribe to the source of an import. Changing this restarts the server. */
  subscribes?: boolean | undefined
}

export interface PoolerSpec {
  uid?: number | undefined
  plan: Plan
  poolMode: PoolMode
  listen: string
  port: number
  postgresPort: number
  cgroup?: string[] | undefined
}

/** The part of the host that a specification depends on. */
export interface ClusterHost {
  /** Addresses that clusters listen on, comma-separated. */
  listen: string
  /** Host names that clients use, for certificates. The API shows the first one. */
  hosts: readonly string[]
  /** Limits the processes of a cluster; returns the `cgroup.procs` files to join, none where limits are unsupported. */
  ensureLimits(id: string, plan: Plan): string[]
}

/** The `application_name` of the WAL receiver, by which `synchronous_standby_names` refers to it. */
export const archiveName = 'berth-archive'

export function toolchainOf(cluster: Cluster): Toolchain {
  return cluster.toolchain as Toolchain
}

/** What an installation must have for the cluster. */
export function needsOf(cluster: Pick<Cluster, 'postgisEnabled' | 'extensions' | 'toolchain'>) {
  const postgis = cluster.postgisEnabled ? ['postgis'] : []
  return { extensions: [...postgis, ...cluster.extensions], current: cluster.toolchain }
}

export function dataSpec(cluster: Cluster): DataSpec {
  return { toolchain: toolchainOf(cluster), uid: cluster.uid ?? undefined }
}

export function clusterSpec(cluster: Cluster, host: ClusterHost): ClusterSpec {
  const plan = planOf(cluster)
  return {
    ...dataSpec(cluster),
    plan,
    diskSizeGb: cluster.diskSizeGb,
    listen: host.listen,
    hosts: [...host.hosts, ...Object.values(privateNames(cluster.id))],
    port: cluster.directPort!,
    cgroup: host.ensureLimits(cluster.id, plan),
    subscribes: cluster.subscribes,
    // Commits wait for the archive only in state `ready`: earlier, no receiver is connected and they would hang.
    ...(cluster.synchronousArchive && cluster.state === 'ready' ? { settings: waitForArchive } : {}),
  }
}

const waitForArchive = { synchronous_standby_names: `"${archiveName}"` }

export function poolerSpec(cluster: Cluster, host: ClusterHost): PoolerSpec {
  const plan = planOf(cluster)
  return {
    uid: cluster.uid ?? undefined,
    plan,
    poolMode: cluster.poolMode,
    listen: host.listen,
    port: cluster.poolerPort!,
    postgresPort: cluster.directPort!,
    cgroup: host.ensureLimits(cluster.id, plan),
  }
}

function planOf(cluster: Cluster): Plan {
  return findPlan(cluster.plan)!
}
