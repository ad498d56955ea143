import { existsSync } from 'node:fs'
import { stopCopies } from '../drivers/box/checkpoint/copy.ts'
import { removeNetwork } from '../drivers/box/network.ts'
import { removeCgroups } from '../drivers/host/cgroup.ts'
import { killFrozenProcesses, removeFreezers } from '../drivers/host/cgroup-freezer.ts'
import { stopControlProcesses } from '../drivers/host/control-process.ts'
import { openHome } from '../drivers/host/home.ts'
import { removeFirewall } from '../drivers/postgres/firewall.ts'
import { jobDriver } from '../drivers/s6/job.ts'
import { isPoolUnmounted, unmountPool } from '../drivers/storage/mount.ts'
import type { Config } from './config.ts'
import { openSupervisor } from './control-plane.ts'

/** Stops the control plane first, because it would start workloads again that it finds stopped. */
export async function down(config: Config): Promise<void> {
  if (!existsSync(config.home) || isPoolUnmounted(config.home)) return
  await stopAll(config)
  await unmountPool(config.home)
}

/** Stops everything that uses the home. */
export async function stopAll(config: Config): Promise<void> {
  const home = await openHome(config.home, { uidBase: config.uidBase })
  await stopControlProcesses(home)
  const supervisor = openSupervisor(home)
  await stopCopies(home, jobDriver(supervisor))
  await killFrozenProcesses(home)
  await supervisor.stopTree()
  await removeCgroups(home)
  await removeFreezers(home)
  await removeNetwork(home)
  await removeFirewall(home)
}
