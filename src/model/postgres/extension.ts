import type { PostgresMajor } from './cluster.ts'

/** Extensions that are no part of PostgreSQL, and the end of the name of the Debian package that has them. */
const packages: Record<string, string> = {
  vector: 'pgvector',
  postgis: 'postgis-3',
  postgis_raster: 'postgis-3',
  postgis_sfcgal: 'postgis-3',
  postgis_tiger_geocoder: 'postgis-3',
  postgis_topology: 'postgis-3',
  address_standardizer: 'postgis-3',
  address_standardizer_data_us: 'postgis-3',
  pgrouting: 'pgrouting',
  h3: 'h3',
  hll: 'hll',
  hypopg: 'hypopg',
  ip4r: 'ip4r',
  pg_partman: 'partman',
  pg_similarity: 'similarity',
  pg_squeeze: 'squeeze',
  pgtap: 'pgtap',
  prefix: 'prefix',
  rum: 'rum',
  semver: 'semver',
  unit: 'unit',
}

/** The Debian package of an extension that PostgreSQL itself does not include. */
export function findExtensionPackage(extension: string, major: PostgresMajor): string | undefined {
  const end = Object.hasOwn(packages, extension) ? packages[extension] : undefined
  return end && `postgresql-${major}-${end}`
}

/** The packages whose absence the operator should know of, by an extension that each one has. */
export const offeredExtensions = ['postgis', 'vector'] as const

/** Extensions that give access to the files or programs of the host, and that only superusers may use. */
export function isRefusedExtension(extension: string): boolean {
  return /^(adminpack|file_fdw|pg_surgery|pltclu|.*plperlu|.*plpython3u)$/.test(extension)
}

/** True for extensions that a cluster offers only if it was created for PostGIS. */
export function isPartOfPostgis(extension: string): boolean {
  return /^(postgis|address_standardizer)/.test(extension)
}
