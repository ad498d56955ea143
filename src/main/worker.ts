import type { Config } from './config.ts'
import { layFoundation, leaveFoundation, startLoop } from './foundation.ts'
import { stopSignal } from './stop.ts'

/** A further worker beside the one in `berth up`, on the same state database. */
export async function worker(config: Config): Promise<void> {
  const stopping = stopSignal()
  const foundation = await layFoundation(config)
  const loop = startLoop(foundation, () => {})
  foundation.log.info({ home: foundation.home.path }, 'working')
  await stopping
  await loop.stop()
  await leaveFoundation(foundation)
}
