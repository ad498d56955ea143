// Finds what boxes have left on the host, and removes it when the platform does not know the box. Everything found here
// has the id of the box in its name, within the directories and the prefixes of one home.
import { existsSync, readdirSync } from 'node:fs'
import { cgroupName } from '../host/cgroup.ts'
import type { CgroupDriver } from '../host/driver.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import type { Supervisor } from '../s6/driver.ts'
import { thawCopies } from './checkpoint/copy.ts'
import { openForRemoval } from './disk.ts'
import { removeBoxNetwork } from './network.ts'
import { boxPaths } from './paths.ts'
import { removePolicyRules } from './policy.ts'

interface StrayHost {
  home: Home
  supervisor: Supervisor
  cgroups: CgroupDriver
}

/** Ids have no dash, which keeps the resolver of a box, `sandbox-<id>-names`, from being taken for another box. */
const idPattern = /^[a-z0-9]+$/

export function listBoxes({ home, supervisor, cgroups }: StrayHost): string[] {
  const directory = `${home.path}/sandbox`
  const group = cgroupName(home, 'sandbox-')
  const found = [
    ...(existsSync(directory) ? readdirSync(directory) : []),
    ...supervisor.listServices().flatMap((name) => /^sandbox-([^-]+)(?:-names)?$/.exec(name)?.[1] ?? []),
    ...cgroups.listCgroups().flatMap((name) => (name.startsWith(group) ? name.slice(group.length) : [])),
  ]
  return [...new Set(found.filter((id) => idPattern.test(id)))]
}

export function findSlot(home: Home, id: string): number | undefined {
  const slot = /^link \S+-(\d+)$/m.exec(readTextIfPresent(boxPaths(home, id).config) ?? '')?.[1]
  return slot === undefined ? undefined : Number(slot)
}

/** Its processes end first, and with them its network namespace and its mounts. */
export async function removeStray(
  { home, supervisor, cgroups }: StrayHost,
  id: string,
  keepFiles: boolean,
): Promise<void> {
  const paths = boxPaths(home, id)
  for (const job of supervisor.listServices().filter((name) => name.startsWith(`checkpoint-${id}-`)))
    await supervisor.removeService(job)
  await thawCopies(home, id)
  for (const name of [paths.supervisedName, `${paths.supervisedName}-names`]) await supervisor.removeService(name)
  await cgroups.removeCgroup(cgroupName(home, `sandbox-${id}`))
  if (keepFiles) return
  await openForRemoval(paths)
  moveToTrash(home, paths.directory)
  emptyTrash(home)
}

export async function removeSlot(home: Home, slot: number): Promise<void> {
  await removePolicyRules(home, slot)
  await removeBoxNetwork(home, slot)
}
