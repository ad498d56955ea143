import { existsSync } from 'node:fs'
import { openHome } from '../drivers/home.ts'
import type { Config } from './config.ts'
import { openSupervisor } from './foundation.ts'

/** Stops everything the platform runs. The control plane itself stops with its own process. */
export async function down(config: Config): Promise<void> {
  if (!existsSync(config.home)) return
  const home = await openHome(config.home, { uidBase: config.uidBase })
  await openSupervisor(home).stopTree()
}
