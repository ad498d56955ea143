import { existsSync, rmSync } from 'node:fs'
import { until } from './until.ts'

/** Node stops half-way, and says nothing, where somebody else deletes as well: what a platform throws away is deleted in the background. */
export function removeDirectory(path: string): Promise<void> {
  return until(() => {
    rmSync(path, { recursive: true, force: true })
    return !existsSync(path)
  })
}
