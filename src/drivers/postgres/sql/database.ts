import { reservedDatabases } from '../../../model/postgres/user.ts'
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
      if (reservedDatabases.has(name)) throw reservedName(name)
      await client.closeConnections(id, name)
      await client.query(id, superuser, `DROP DATABASE ${quoteIdentifier(name)} WITH (FORCE)`)
    },
  }
}

function findDatabases(client: SqlClient, id: string): Promise<{ name: string; open: boolean }[]> {
  return client.query(
    id,
    superuser,
    'select datname as name, datallowconn as open from pg_database where not datname = any($1) order by 1',
    [[...reservedDatabases]],
  )
}
