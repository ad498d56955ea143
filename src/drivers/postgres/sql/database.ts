import { platformDatabases, reservedDatabases } from '../../../model/postgres/user.ts'
import type { DatabaseAdmin, SqlClient } from './driver.ts'
import { reservedName } from './error.ts'
import { superuser } from './platform-role.ts'
import { quoteIdentifier } from './quote.ts'
import { grantPoolerConnect } from './rights.ts'

export function databaseAdmin(client: SqlClient): DatabaseAdmin {
  return {
    list: async (id) => (await findDatabases(client, id)).map(({ name }) => name),
    listOpen: async (id) => (await findDatabases(client, id)).filter(({ open }) => open).map(({ name }) => name),
    async create(id, name) {
      if (reservedDatabases.has(name)) throw reservedName(name)
      await client.query(id, superuser, `CREATE DATABASE ${quoteIdentifier(name)} OWNER schema_admin`)
      await client.query(id, superuser, grantPoolerConnect(name))
    },
    async drop(id, name) {
      if (platformDatabases.has(name)) throw reservedName(name)
      await client.closeConnections(id, name)
      await makeDroppable(client, id, name)
      await client.query(id, superuser, `DROP DATABASE ${quoteIdentifier(name)} WITH (FORCE)`)
    },
  }
}

function findDatabases(client: SqlClient, id: string): Promise<{ name: string; open: boolean }[]> {
  return client.query(
    id,
    superuser,
    'select datname as name, datallowconn as open from pg_database where not datname = any($1) order by 1',
    [[...platformDatabases]],
  )
}

/** PostgreSQL refuses to drop a template, which a tenant can create in SQL. */
async function makeDroppable(client: SqlClient, id: string, name: string): Promise<void> {
  const [template] = await client.query(id, superuser, 'select from pg_database where datname = $1 and datistemplate', [
    name,
  ])
  if (template) await client.query(id, superuser, `ALTER DATABASE ${quoteIdentifier(name)} IS_TEMPLATE false`)
}

/** Allows connections to a closed database while `work` runs. */
export async function whileOpen(
  client: SqlClient,
  id: string,
  database: string,
  work: () => Promise<void>,
): Promise<void> {
  const allow = (open: boolean) =>
    client.query(id, superuser, `ALTER DATABASE ${quoteIdentifier(database)} ALLOW_CONNECTIONS ${open}`)
  await allow(true)
  try {
    await work()
  } finally {
    await allow(false)
  }
}
