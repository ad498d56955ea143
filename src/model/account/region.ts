import { type BerthError, invalid } from '../errors.ts'
import type { PlatformSettings } from '../settings.ts'

const regionPattern = /^[a-z][a-z0-9-]{0,30}[a-z0-9]$/

/** Returns the requested region or the default, or an error when the platform does not serve it. */
export function chooseRegion(settings: PlatformSettings, asked: string | undefined): string | BerthError {
  const region = asked || settings.defaultRegion
  if (settings.regions !== null && !settings.regions.includes(region)) {
    return invalid(`region must be one of ${settings.regions.join(', ')}`)
  }
  return regionPattern.test(region) ? region : invalid('region must be 2 to 32 lowercase letters, digits and dashes')
}

export interface Region {
  code: string
  /** The display name. */
  name: string
  latitude: number
  longitude: number
  /** The continent, if known. */
  area: string | null
}

/** Fly.io's region codes, which clients know. Here every region is this host. */
const wellKnown: [code: string, name: string, latitude: number, longitude: number, area: string][] = [
  ['ams', 'Amsterdam, Netherlands', 52.37, 4.9, 'europe'],
  ['arn', 'Stockholm, Sweden', 59.65, 17.92, 'europe'],
  ['bom', 'Mumbai, India', 19.1, 72.87, 'asia_pacific'],
  ['cdg', 'Paris, France', 48.86, 2.35, 'europe'],
  ['dfw', 'Dallas, Texas (US)', 32.78, -96.8, 'north_america'],
  ['ewr', 'Secaucus, New Jersey (US)', 40.79, -74.06, 'north_america'],
  ['fra', 'Frankfurt, Germany', 50.12, 8.68, 'europe'],
  ['gru', 'Sao Paulo, Brazil', -23.55, -46.65, 'south_america'],
  ['iad', 'Ashburn, Virginia (US)', 39.02, -77.46, 'north_america'],
  ['jnb', 'Johannesburg, South Africa', -26.14, 28.2, 'africa'],
  ['lax', 'Los Angeles, California (US)', 33.94, -118.41, 'north_america'],
  ['lhr', 'London, United Kingdom', 51.52, -0.13, 'europe'],
  ['nrt', 'Tokyo, Japan', 35.62, 139.74, 'asia_pacific'],
  ['ord', 'Chicago, Illinois (US)', 41.89, -87.63, 'north_america'],
  ['sin', 'Singapore, Singapore', 1.3, 103.8, 'asia_pacific'],
  ['sjc', 'San Jose, California (US)', 37.35, -121.9, 'north_america'],
  ['syd', 'Sydney, Australia', -33.87, 151.22, 'asia_pacific'],
  ['yyz', 'Toronto, Canada', 43.64, -79.38, 'north_america'],
]

const unitedStates = ['dfw', 'ewr', 'iad', 'lax', 'ord', 'sjc']

/** Names of continents and the region codes in them. */
const aliases: Record<string, string[]> = {
  apac: codesIn('asia_pacific'),
  eu: codesIn('europe'),
  na: codesIn('north_america'),
  sa: codesIn('south_america'),
  us: unitedStates,
  usa: unitedStates,
}

function codesIn(wanted: string): string[] {
  return wellKnown.filter(([, , , , area]) => area === wanted).map(([code]) => code)
}

export function isRegionAlias(word: string): boolean {
  return word === 'any' || Object.hasOwn(aliases, word)
}

/** Whether a region matches a requested code or alias. */
export function fitsRegion(region: string, asked: string): boolean {
  if (region === asked || asked === 'any') return true
  return Object.hasOwn(aliases, asked) && aliases[asked]!.includes(region)
}

/** The configured regions, default first; the well-known ones when every code is accepted. */
export function listRegions(settings: Pick<PlatformSettings, 'regions' | 'defaultRegion'>): Region[] {
  const codes = settings.regions ?? wellKnown.map(([code]) => code)
  return [...new Set([settings.defaultRegion, ...codes])].map(regionOf)
}

export function regionOf(code: string): Region {
  const known = wellKnown.find((region) => region[0] === code)
  if (!known) return { code, name: code, latitude: 0, longitude: 0, area: null }
  const [, name, latitude, longitude, area] = known
  return { code, name, latitude, longitude, area }
}
