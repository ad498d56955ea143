import type { VolumeMeasure } from '../../drivers/volume/driver.ts'
import type { LiveContext } from '../context.ts'

/** Returns undefined when the volume does not exist yet, and on hosts that do not enforce sizes. */
export function measureVolume(ctx: LiveContext, id: string): VolumeMeasure | undefined {
  return ctx.volumes.measureVolume(id)
}

/** Whether a machine sees the new size of a mounted volume only after its next start. */
export function growsAtStart(ctx: LiveContext): Promise<boolean> {
  return ctx.volumes.growsAtStart()
}
