import type { ContainerStatus, MachineProcess } from '../../drivers/machine/driver.ts'
import type { ContainerState } from '../../model/app/container/config.ts'
import type { Machine } from '../../model/app/machine.ts'
import { setContainers } from '../../store/app/machine-progress.ts'
import type { Tx } from '../../store/db.ts'

/** Returns what records the states of its containers, unless they are recorded. The driver wakes the machine on changes. */
export function changedContainers(machine: Machine, process: MachineProcess): ((tx: Tx) => Promise<void>) | undefined {
  if (process.is !== 'up' || !process.containers) return undefined
  const found = process.containers.map(containerState)
  const isSame = JSON.stringify(found) === JSON.stringify((machine.containers ?? []).map(ordered))
  return isSame ? undefined : (tx) => setContainers(tx, machine.id, found)
}

function containerState({ name, state, health, exitCode, restarts }: ContainerStatus): ContainerState {
  return ordered({
    name,
    state,
    ...(health && { health }),
    ...(exitCode !== undefined && { exit_code: exitCode }),
    restart_count: restarts,
  })
}

/** The database changes the order of the fields. */
function ordered({ name, state, health, exit_code, restart_count }: ContainerState): ContainerState {
  return { name, state, ...(health && { health }), ...(exit_code !== undefined && { exit_code }), restart_count }
}
