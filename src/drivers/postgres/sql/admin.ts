import { databaseAdmin } from './database.ts'
import type { SqlAdmin, SqlClient } from './driver.ts'
import { extensionAdmin } from './extension.ts'
import { rollBackPrepared } from './prepared.ts'
import { userAdmin } from './role.ts'
import { ensureGrants } from './upgrade.ts'

export function sqlAdmin(client: SqlClient): SqlAdmin {
  return {
    users: userAdmin(client),
    databases: databaseAdmin(client),
    extensions: extensionAdmin(client),
    rollBackPrepared: (id) => rollBackPrepared(client, id),
    ensureGrants: (id) => ensureGrants(client, id),
  }
}
