import type { VolumeMeasure } from '../../drivers/volume/driver.ts'
import type { LiveContext } from '../context.ts'

/** What is on it now; undefined while it is not there, or where nobody counts. */
export function measureVolume(ctx: LiveContext, id: string): VolumeMeasure | undefined {
  return ctx.volumes.measureVolume(id)
}

/** Whether a machine that has it mounted sees the new size only after its next start. */
export function growsAtStart(ctx: LiveContext): Promise<boolean> {
  return ctx.volumes.growsAtStart()
}
