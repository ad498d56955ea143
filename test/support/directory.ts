import { existsSync, rmSync } from 'node:fs'
import { until } from './until.ts'

/**
 * Deletes a directory, repeatedly if necessary: rmSync stops half-way without an error while the platform empties its
 * trash in the background.
 */
export function removeDirectory(path: string): Promise<void> {
  return until(() => {
    rmSync(path, { recursive: true, force: true })
    return !existsSync(path)
  })
}
