import { statfs } from 'node:fs/promises'
import type { PostgresMajor } from '../../model/postgres/cluster.ts'
import type { Plan } from '../../model/postgres/plan.ts'
import { cgroupDriver, cgroupName } from '../host/cgroup.ts'
import type { Home } from '../host/home.ts'
import { isRoot } from '../host/process.ts'
import { canBind } from '../network/port.ts'
import { ensureToolchain, type Toolchain } from './toolchain/toolchain.ts'

/** What a place gives to the clusters that live there. */
export interface Hosting {
  /** The addresses clusters listen on. */
  listen: string
  /** The names under which clients know them, for certificates; the first is the one the API shows. */
  hosts: readonly string[]
  /** Ports that may be handed out. */
  ports: { first: number; last: number }
  /** Uids that may be handed out; undefined where all processes run as one user. */
  uids: { first: number; last: number } | undefined
  findToolchain(major: PostgresMajor): Promise<Toolchain>
  canBind(port: number): Promise<boolean>
  freeBytes(): Promise<number>
  /** Limits for the processes of a cluster: the files they join, none where limits cannot be set. */
  ensureLimits(id: string, plan: Plan): string[]
  removeLimits(id: string): Promise<void>
}

export interface HostingOptions {
  home: Home
  listen: string
  host: string
  ports: { first: number; last: number }
  configuredBins: Partial<Record<PostgresMajor, string>>
}

export function thisHost({ home, listen, host, ports, configuredBins }: HostingOptions): Hosting {
  const cgroups = cgroupDriver()
  return {
    listen,
    hosts: [...new Set([host, 'localhost', '127.0.0.1', '::1'])],
    ports,
    // The state database has the first uid of the home; 65,535 more come before the ranges of boxes.
    uids: isRoot() ? { first: home.uidStart + 1, last: home.uidStart + 65_535 } : undefined,
    findToolchain: (major) => ensureToolchain(major, home, { configuredBin: configuredBins[major] }),
    canBind: (port) => canBind(listen, port),
    async freeBytes() {
      const { bavail, bsize } = await statfs(home.path)
      return bavail * bsize
    },
    ensureLimits: (id, plan) => cgroups.ensureCgroup(cgroupName(home, id), limitsOf(plan)),
    removeLimits: (id) => cgroups.removeCgroup(cgroupName(home, id)),
  }
}

/** A process per connection and some of the server's own; more than that is a runaway. */
function limitsOf(plan: Plan) {
  return {
    memoryMb: plan.memoryMb,
    cpus: plan.cpus,
    pids: (plan.databaseConnections + plan.reserveConnections) * 2 + 100,
  }
}
