import type { Config } from './config.ts'
import { closeControlPlane, openControlPlane, startLoop } from './control-plane.ts'
import type { Startup } from './startup.ts'
import { stopSignal } from './stop.ts'

/** Runs an additional worker beside the one in `berth up`, on the same state database. */
export async function worker(config: Config, startup: Startup): Promise<void> {
  const stopping = stopSignal(() => startup.step('Stopping the worker'))
  const controlPlane = await openControlPlane(config, startup)
  const loop = startLoop(controlPlane, () => {})
  controlPlane.log.info({ home: controlPlane.home.path }, 'worker started')
  startup.step('Running the worker; Ctrl-C stops it')
  await stopping
  await loop.stop()
  await closeControlPlane(controlPlane)
}
