import type { Isolation } from '../box/driver.ts'
import type { BoxAbility } from '../box/probe.ts'
import { cgroupName } from '../host/cgroup.ts'
import type { CgroupDriver } from '../host/driver.ts'
import type { Home } from '../host/home.ts'
import type { Supervisor } from '../s6/driver.ts'
import type { SupervisorPaths } from '../s6/service-directory.ts'
import type { StorageQuota } from '../storage/driver.ts'
import type { VolumeDriver } from '../volume/driver.ts'

export interface MachineOptions {
  home: Home
  supervisor: Supervisor
  cgroups: CgroupDriver
  volumes: Pick<VolumeDriver, 'mountOf'>
  /** Replaces the probe of what this host can isolate. */
  ability?: BoxAbility
}

/** What the operations of the machine driver share. */
export interface MachineHost extends MachineOptions {
  quota: StorageQuota
  able(): Promise<BoxAbility>
}

const singleGap =
  'Berth runs as an ordinary user, so that machines have one user and no network, and cannot be reached by anybody.'

/** Words the isolation of sandboxes for machines, which cannot run without namespaces. */
export function isolationOf({ mode, isolation, why }: BoxAbility): Isolation {
  if (mode === 'full') return { ...isolation, ...(isolation.gap && { gap: aboutMachines(isolation.gap) }) }
  if (mode === 'single') return { ...isolation, gap: singleGap }
  return {
    ...isolation,
    gap: `Machines cannot run here: images need namespaces to be mounted in, and ${why ?? 'there are none'}.`,
  }
}

function aboutMachines(gap: string): string {
  return gap.replace(/^Sandboxes\b/, 'Machines').replace(/\ba sandbox\b/, 'a machine')
}

export function groupName(home: Home, id: string): string {
  return cgroupName(home, `machine-${id}`)
}

export function servicePlace(home: Home): SupervisorPaths {
  return { treeDirectory: home.tree, logDirectory: home.log }
}
