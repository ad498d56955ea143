import { statfs } from 'node:fs/promises'
import type { PostgresMajor } from '../../model/postgres/cluster.ts'
import type { Plan } from '../../model/postgres/plan.ts'
import type { PostgresSource } from '../../model/postgres/toolchain.ts'
import { cgroupDriver, cgroupName } from '../host/cgroup.ts'
import type { Home } from '../host/home.ts'
import { isExecutable, isRoot } from '../host/process.ts'
import { canBind, reachableHost } from '../network/port.ts'
import { storageQuota } from '../storage/quota.ts'
import { ensureClustersDirectory } from './data.ts'
import type { Hosting, ToolchainNeeds } from './driver.ts'
import { ensureFirewall } from './firewall.ts'
import { clusterPaths } from './paths.ts'
import { ensureToolchain } from './toolchain/toolchain.ts'
import { uidStride } from './users.ts'

export interface HostingOptions {
  home: Home
  listen: string
  host: string
  ports: { first: number; last: number }
  configuredBins: Partial<Record<PostgresMajor, string>>
  /** The installation of a new cluster, and where the distribution has its own. */
  source: PostgresSource
  distribution: string
}

export function localHosting(options: HostingOptions): Hosting {
  const { home, listen, host, ports, configuredBins, distribution } = options
  const cgroups = cgroupDriver()
  const quota = storageQuota(home)
  return {
    listen,
    localHost: reachableHost(listen),
    hosts: [...new Set([host, 'localhost', '127.0.0.1', '::1'])],
    ports,
    // The state database has the first uid of the home, the edge the last one below the ranges of boxes.
    uids: isRoot() ? { first: home.uidStart + 1, last: home.uidStart + uidStride } : undefined,
    findToolchain: (major, { extensions, current } = {}) => {
      const prefer = sourceOf(current) ?? options.source
      return ensureToolchain(major, home, { configuredBin: configuredBins[major], distribution, prefer, extensions })
    },
    isInstalled: ({ bin }) => isExecutable(`${bin}/postgres`),
    canBind: (port) => canBind(listen, port),
    async freeBytes() {
      const { bavail, bsize } = await statfs(home.path)
      return bavail * bsize
    },
    findFirewallProblem: () => ensureFirewall(home),
    ensureLimits: (id, plan) => cgroups.ensureCgroup(cgroupName(home, id), limitsOf(plan)),
    async ensureDisk(id) {
      await ensureClustersDirectory(`${home.path}/clusters`)
      await quota.ensureDirectory(clusterPaths(home, id).directory)
    },
    ensureDiskLimit: (id, diskSizeGb, isFull) =>
      quota.ensureLimit(clusterPaths(home, id).directory, hardLimitBytes(diskSizeGb) + (isFull ? reserveBytes : 0)),
    removeLimits: (id) => cgroups.removeCgroup(cgroupName(home, id)),
  }
}

/** Undefined for a cluster whose installation the operator no longer configures. */
function sourceOf(current: ToolchainNeeds['current']): PostgresSource | undefined {
  const sources: Record<string, PostgresSource> = { npm: 'bundled', distribution: 'distribution' }
  return current ? sources[current.source] : undefined
}

/** Far more processes than one per connection and those of the server itself; more than this is a runaway. */
function limitsOf(plan: Plan) {
  return {
    memoryMb: plan.memoryMb,
    cpus: plan.cpus,
    pids: (plan.databaseConnections + plan.reserveConnections) * 2 + 100,
  }
}

const reserveBytes = 512 * 1024 ** 2

/** Leaves space for WAL and temporary files after the data itself has reached its size. */
function hardLimitBytes(diskSizeGb: number): number {
  return Math.round((diskSizeGb * 1.1 + 1) * 1024 ** 3)
}
