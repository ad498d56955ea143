import { existsSync } from 'node:fs'
import { stopCopies } from '../drivers/box-checkpoint.ts'
import { removeNetwork } from '../drivers/box-network.ts'
import { removeCgroups } from '../drivers/cgroup.ts'
import { endFrozen, removeFreezers } from '../drivers/cgroup-freezer.ts'
import { stopControlProcesses } from '../drivers/control-process.ts'
import { openHome } from '../drivers/home.ts'
import { jobDriver } from '../drivers/job.ts'
import type { Config } from './config.ts'
import { openSupervisor } from './foundation.ts'

/** Stops the control plane and everything it runs, in this order: it would start what it finds missing. */
export async function down(config: Config): Promise<void> {
  if (!existsSync(config.home)) return
  const home = await openHome(config.home, { uidBase: config.uidBase })
  await stopControlProcesses(home)
  const supervisor = openSupervisor(home)
  await stopCopies(home, jobDriver(supervisor))
  await endFrozen(home)
  await supervisor.stopTree()
  await removeCgroups(home)
  await removeFreezers(home)
  await removeNetwork(home)
}
