import { existsSync } from 'node:fs'
import { isNewerVersion } from '../../model/postgres/upgrade.ts'
import { openDatabase } from '../../store/db.ts'
import { type ClusterVersion, listClusterVersions } from '../../store/postgres/upgrade.ts'
import type { Config } from '../config.ts'
import { type Finding, ok, warning } from './finding.ts'

/** More clusters than this are counted only. */
const maxNamed = 3

/** Compares the servers of all clusters with the installed versions, as the platform last saw them. */
export async function checkClusterVersions({
  home,
  databaseUrl,
}: Pick<Config, 'home' | 'databaseUrl'>): Promise<Finding> {
  const socketDirectory = `${home}/run/state`
  if (databaseUrl === undefined && !existsSync(`${socketDirectory}/.s.PGSQL.5432`)) {
    return ok('not known, because the platform does not run')
  }
  const address =
    databaseUrl === undefined
      ? { host: socketDirectory, port: 5432, user: 'berth', database: 'berth' }
      : { connectionString: databaseUrl }
  const db = openDatabase({ ...address, max: 1, connectionTimeoutMillis: 1_500 })
  try {
    return describe(await listClusterVersions(db))
  } catch {
    return ok('not known, because the state database does not answer')
  } finally {
    void db.close()
  }
}

function describe(clusters: ClusterVersion[]): Finding {
  const outdated = clusters.filter(({ running, newest }) => isNewerVersion(newest, running))
  if (outdated.length === 0) return ok(`${clusters.length} clusters, none of them outdated`)
  const named = outdated.slice(0, maxNamed).map(({ name, running, newest }) => `${name} (${running}, not ${newest})`)
  const more = outdated.length > maxNamed ? ` and ${outdated.length - maxNamed} more` : ''
  return warning(
    `${outdated.length} of ${clusters.length} clusters run an older minor version: ${named.join(', ')}${more}`,
    'They lack fixes of PostgreSQL that are installed.',
    `berth postgres upgrade ${outdated[0]!.id}`,
  )
}
