// Brings a cluster or backup of an earlier version up to date, and databases that tenants created in SQL into a form that the
// platform can administer.
import { isUtf8 } from 'node:buffer'
import { BerthError } from '../../../model/errors.ts'
import { whileOpen } from './database.ts'
import type { SqlClient } from './driver.ts'
import { poolerUser, superuser } from './platform-role.ts'
import {
  allowCreateDatabase,
  completeDatabase,
  grantPoolerConnect,
  lookup,
  openPlatformDatabase,
  roleChain,
} from './rights.ts'

const formerRoles = 'pg_read_all_data, pg_write_all_data'

/** Repeatable. What allows tenants more than before comes last, so that an interrupted upgrade is continued. */
export async function ensureGrants(client: SqlClient, id: string): Promise<void> {
  const [state] = await client.query<{ former: boolean; current: boolean }>(
    id,
    superuser,
    `select
       exists (select from pg_auth_members where roleid = 'pg_read_all_data'::regrole and member = 'reader'::regrole) as former,
       (select rolcreatedb from pg_roles where rolname = 'schema_admin') and exists (
         select from pg_database, aclexplode(datacl) where datname = 'template0' and grantee = '${poolerUser}'::regrole) as current`,
  )
  if (state!.former || !state!.current) await upgrade(client, id, state!.former)
  await repairDatabases(client, id)
}

async function upgrade(client: SqlClient, id: string, hasFormerRoles: boolean): Promise<void> {
  const databases = await client.query<{ name: string }>(
    id,
    superuser,
    // An interrupted DROP DATABASE leaves a connection limit of -2; such a database accepts no connections.
    `select datname as name from pg_database
     where datallowconn and datconnlimit <> -2 and not datname = any(array['${superuser}', 'template0'])`,
  )
  for (const { name } of databases) await completeDatabase(client, id, name)
  // CREATE DATABASE fails while a session is connected to the template.
  await client.closeConnections(id, 'template1')
  if (hasFormerRoles) {
    await client.query(id, superuser, `${roleChain} REVOKE ${formerRoles} FROM schema_admin, writer, reader`)
  }
  await completeTemplate0(client, id)
  const [found] = await client.query(id, superuser, `select from pg_namespace where nspname = 'pg_berth'`)
  if (!found) await client.query(id, superuser, lookup)
  await client.query(id, superuser, openPlatformDatabase)
  await client.query(id, superuser, allowCreateDatabase)
}

/** A copy of template0 must have the rights and the trigger of the other databases. The last grant marks it as complete. */
async function completeTemplate0(client: SqlClient, id: string): Promise<void> {
  await client.query(id, superuser, 'REVOKE CONNECT ON DATABASE template0 FROM PUBLIC')
  await whileOpen(client, id, 'template0', async () => {
    await completeDatabase(client, id, 'template0')
    await client.closeConnections(id, 'template0')
  })
  await client.query(id, superuser, grantPoolerConnect('template0'))
}

/** Tenants own their databases, so they may change what the platform needs. */
async function repairDatabases(client: SqlClient, id: string): Promise<void> {
  const databases = await client.query<{ oid: number; name: string; bytes: Buffer; lacksPooler: boolean }>(
    id,
    superuser,
    `select oid, datname as name, textsend(datname::text) as bytes,
       datallowconn and datname <> 'template1' and not has_database_privilege('${poolerUser}', oid, 'connect') as "lacksPooler"
     from pg_database where datconnlimit <> -2`,
  )
  for (const { oid, name, bytes, lacksPooler } of databases) {
    if (!isUtf8(bytes)) await client.query(id, superuser, renameUndecodable(oid)).catch(ignoreBusy)
    else if (lacksPooler) await client.query(id, superuser, grantPoolerConnect(name)).catch(ignoreBusy)
  }
}

/**
 * In a database with the encoding SQL_ASCII, a tenant can give another one a name that is not UTF-8. Nobody could name it in
 * a request.
 */
function renameUndecodable(oid: number): string {
  const rename = `SELECT format('ALTER DATABASE %I RENAME TO %I', datname, 'invalid_' || oid)
    FROM pg_catalog.pg_database WHERE oid = ${oid}`
  return `DO $$ BEGIN EXECUTE (${rename}); END $$`
}

/** A session in the database, a taken name or a dropped database; the next call tries again. */
function ignoreBusy(error: unknown): void {
  if (!(error instanceof BerthError)) throw error
}
