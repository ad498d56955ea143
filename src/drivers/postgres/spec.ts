// What a cluster's row means for the drivers: how its server and its pooler should look. No I/O but for the limits.
import { type Cluster, privateNames } from '../../model/postgres/cluster.ts'
import { findPlan, type Plan } from '../../model/postgres/plan.ts'
import type { DataOptions } from './data.ts'
import type { Hosting } from './hosting.ts'
import type { PoolerSpec } from './pooler/pooler.ts'
import { archiveName } from './receiver.ts'
import type { ClusterSpec } from './server.ts'
import type { Toolchain } from './toolchain/toolchain.ts'

export function dataOptions(cluster: Cluster): DataOptions {
  return { toolchain: cluster.toolchain as Toolchain, uid: cluster.uid ?? undefined }
}

export function clusterSpec(cluster: Cluster, hosting: Hosting): ClusterSpec {
  const plan = planOf(cluster)
  return {
    ...dataOptions(cluster),
    plan,
    diskSizeGb: cluster.diskSizeGb,
    listen: hosting.listen,
    hosts: [...hosting.hosts, ...Object.values(privateNames(cluster.id))],
    port: cluster.directPort!,
    cgroup: hosting.ensureLimits(cluster.id, plan),
    // Before the archive receives, a commit would wait for it for ever.
    ...(cluster.synchronousArchive && cluster.state === 'ready' ? { settings: waitForArchive } : {}),
  }
}

const waitForArchive = { synchronous_standby_names: `"${archiveName}"` }

export function poolerSpec(cluster: Cluster, hosting: Hosting, databases: string[]): PoolerSpec {
  const plan = planOf(cluster)
  return {
    uid: cluster.uid ?? undefined,
    plan,
    poolMode: cluster.poolMode,
    databases,
    listen: hosting.listen,
    port: cluster.poolerPort!,
    postgresPort: cluster.directPort!,
    cgroup: hosting.ensureLimits(cluster.id, plan),
  }
}

function planOf(cluster: Cluster): Plan {
  return findPlan(cluster.plan)!
}
