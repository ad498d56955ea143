import type { Config } from './config.ts'
import { closeControlPlane, openControlPlane, startLoop } from './control-plane.ts'
import { stopSignal } from './stop.ts'

/** Runs an additional worker beside the one in `berth up`, on the same state database. */
export async function worker(config: Config): Promise<void> {
  const stopping = stopSignal()
  const controlPlane = await openControlPlane(config)
  const loop = startLoop(controlPlane, () => {})
  controlPlane.log.info({ home: controlPlane.home.path }, 'worker started')
  await stopping
  await loop.stop()
  await closeControlPlane(controlPlane)
}
