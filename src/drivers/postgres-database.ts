import { reservedDatabases } from '../model/user.ts'
import type { PostgresDriver } from './postgres.ts'
import { reservedName } from './postgres-error.ts'
import { letPoolerConnect } from './postgres-rights.ts'
import type { Asker } from './postgres-role.ts'
import { quoteIdentifier } from './postgres-sql.ts'
import { superuser } from './postgres-template.ts'

export async function listDatabases(postgres: Asker, id: string): Promise<string[]> {
  const rows = await postgres.query<{ name: string }>(
    id,
    superuser,
    'select datname as name from pg_database where datallowconn and not datname = any($1) order by 1',
    [[...reservedDatabases]],
  )
  return rows.map((row) => row.name)
}

/** With all that the template has. Refuses a name that is taken with `conflict`. */
export async function createDatabase(postgres: Asker, id: string, name: string): Promise<void> {
  if (reservedDatabases.has(name)) throw reservedName(name)
  await postgres.query(id, superuser, `CREATE DATABASE ${quoteIdentifier(name)} OWNER schema_admin`)
  await postgres.query(id, superuser, letPoolerConnect(name))
}

/** Ends every session in it, those of the pooler as well. */
export async function dropDatabase(
  postgres: Pick<PostgresDriver, 'query' | 'closeConnections'>,
  id: string,
  name: string,
): Promise<void> {
  if (reservedDatabases.has(name)) throw reservedName(name)
  await postgres.closeConnections(id, name)
  await postgres.query(id, superuser, `DROP DATABASE ${quoteIdentifier(name)} WITH (FORCE)`)
}
