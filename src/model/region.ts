import { type BerthError, invalid } from './errors.ts'
import type { PlatformSettings } from './settings.ts'

const regionPattern = /^[a-z][a-z0-9-]{0,30}[a-z0-9]$/

/** The region asked for, or the default; refused when this machine does not answer for it. */
export function chooseRegion(settings: PlatformSettings, asked: string | undefined): string | BerthError {
  const region = asked || settings.defaultRegion
  if (settings.regions !== null && !settings.regions.includes(region)) {
    return invalid(`region must be one of ${settings.regions.join(', ')}`)
  }
  return regionPattern.test(region) ? region : invalid('region must be 2 to 32 lowercase letters, digits and dashes')
}
