import { reservedDatabases } from '../../../model/postgres/user.ts'
import type { PostgresDriver } from '../server.ts'
import { superuser } from '../template.ts'
import { reservedName } from './error.ts'
import { quoteIdentifier } from './quote.ts'
import { letPoolerConnect } from './rights.ts'
import type { Asker } from './role.ts'

export async function listDatabases(postgres: Asker, id: string): Promise<string[]> {
  return (await findDatabases(postgres, id)).map(({ name }) => name)
}

/** Those that nobody has closed to everybody. */
export async function listOpenDatabases(postgres: Asker, id: string): Promise<string[]> {
  return (await findDatabases(postgres, id)).filter(({ open }) => open).map(({ name }) => name)
}

function findDatabases(postgres: Asker, id: string): Promise<{ name: string; open: boolean }[]> {
  return postgres.query(
    id,
    superuser,
    'select datname as name, datallowconn as open from pg_database where not datname = any($1) order by 1',
    [[...reservedDatabases]],
  )
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
