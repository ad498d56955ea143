import { freeze, isFrozen, thaw } from '../host/cgroup-freezer.ts'
import { clearDown, markDown } from '../s6/service-directory.ts'
import { findRunning } from './container.ts'
import { readFreezer } from './control-group.ts'
import { type MachineHost, servicePlace } from './host.ts'
import { machinePaths } from './paths.ts'

/** Returns false when the host has no cgroup freezer. */
export async function freezeMachine(host: MachineHost, id: string): Promise<boolean> {
  const paths = machinePaths(host.home, id)
  const freezer = readFreezer(paths)
  if (!findRunning(paths)) throw new Error(`suspend the machine ${id}: it is not running`)
  if (freezer === undefined) return false
  // A reboot loses the frozen processes, and the supervisor must not start the program instead.
  markDown(servicePlace(host.home), paths.supervisedName)
  await freeze(freezer)
  return true
}

export function thawMachine(host: MachineHost, id: string): void {
  const paths = machinePaths(host.home, id)
  if (!findRunning(paths)) throw new Error(`resume the machine ${id}: it is not running`)
  const freezer = readFreezer(paths)
  clearDown(servicePlace(host.home), paths.supervisedName)
  if (freezer !== undefined && isFrozen(freezer)) thaw(freezer)
}
