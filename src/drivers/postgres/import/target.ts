// The copy of an imported database in its cluster. It is made beside the target and takes its place at the end, so that
// the target is either untouched or complete.
import { BerthError } from '../../../model/errors.ts'
import { replicationName, type SourceExtension } from '../../../model/postgres/import.ts'
import { copyDatabase, reservedDatabases } from '../../../model/postgres/user.ts'
import { ensureFile } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import type { ExtensionAdmin, SqlClient } from '../sql/driver.ts'
import { importRole, superuser } from '../sql/platform-role.ts'
import { quoteIdentifier, quoteLiteral } from '../sql/quote.ts'
import { grantPoolerConnect } from '../sql/rights.ts'
import { scramVerifier } from '../sql/scram.ts'
import { clusterUsers } from '../users.ts'
import { type ImportSpec, type ImportTask, SourceError } from './driver.ts'
import { passwordLine } from './job.ts'
import { importPaths, sourcePort } from './paths.ts'
import type { SequenceValue } from './source.ts'

export type TargetClient = SqlClient & { extensions: ExtensionAdmin }

/** Why the database cannot be replaced: it is missing or not empty. Extensions do not count. */
export async function findTargetProblem(client: SqlClient, id: string, database: string): Promise<string | undefined> {
  if (reservedDatabases.has(database)) return `database ${database} is reserved`
  if (!(await databaseExists(client, id, database))) return `database ${database} does not exist`
  const [found] = await client.query<{ name: string }>(
    id,
    database,
    `select name from (
       select 'relation ' || format('%I.%I', nspname, relname) as name, relnamespace as schema, 'pg_class'::regclass as class, pg_class.oid as object
       from pg_class join pg_namespace on pg_namespace.oid = relnamespace
       union all
       select 'function ' || format('%I.%I', nspname, proname), pronamespace, 'pg_proc'::regclass, pg_proc.oid
       from pg_proc join pg_namespace on pg_namespace.oid = pronamespace
       union all
       select 'type ' || format('%I.%I', nspname, typname), typnamespace, 'pg_type'::regclass, pg_type.oid
       from pg_type join pg_namespace on pg_namespace.oid = typnamespace where typtype in ('d', 'e', 'r')
       union all
       select 'schema ' || format('%I', nspname), oid, 'pg_namespace'::regclass, oid from pg_namespace where nspname <> 'public'
       union all
       select 'large object ' || oid, null, null, oid from pg_largeobject_metadata
     ) objects left join pg_namespace on pg_namespace.oid = schema
     where coalesce(nspname !~ '^pg_' and nspname <> 'information_schema', true)
       and not exists (select from pg_depend where classid = class and objid = object and deptype = 'e')
     limit 1`,
  )
  return found && `database ${database} is not empty: it has the ${found.name}; import into an empty database`
}

async function databaseExists(client: SqlClient, id: string, database: string): Promise<boolean> {
  const rows = await client.query(id, superuser, 'select 1 from pg_database where datname = $1', [database])
  return rows.length > 0
}

export function hasCopy(client: SqlClient, id: string): Promise<boolean> {
  return databaseExists(client, id, copyDatabase)
}

/** Creates the empty database of the copy and its role, whose password changes each time. */
export async function prepareCopy(
  client: TargetClient,
  id: string,
  password: string,
  extensions: SourceExtension[],
): Promise<void> {
  await dropCopy(client, id)
  const [database, role] = [quoteIdentifier(copyDatabase), quoteIdentifier(importRole)]
  const verifier = quoteLiteral(scramVerifier(password))
  await client.query(
    id,
    superuser,
    `CREATE ROLE ${role} LOGIN PASSWORD ${verifier} IN ROLE schema_admin; ALTER ROLE ${role} SET role = 'schema_admin'`,
  )
  await client.query(id, superuser, `CREATE DATABASE ${database} OWNER schema_admin`)
  await client.query(id, superuser, grantPoolerConnect(copyDatabase))
  const installed = new Set(
    (await client.extensions.list(id, copyDatabase)).filter((one) => one.installed).map(({ name }) => name),
  )
  for (const { name, schema } of extensions) if (!installed.has(name)) await enableExtension(client, id, name, schema)
}

async function enableExtension(client: TargetClient, id: string, name: string, schema: string): Promise<void> {
  try {
    await client.extensions.enable(
      id,
      copyDatabase,
      name,
      schema === 'pg_catalog' ? {} : { schema, createSchema: true },
    )
  } catch (error) {
    // Another extension may have required and installed it.
    if (error instanceof BerthError && error.code === 'conflict') return
    if (!(error instanceof BerthError) || error.code === 'unavailable') throw error
    throw new SourceError(`extension ${name} cannot be created in schema ${schema}: ${error.message}`, false, error)
  }
}

/** Schemas that exist in the copy before the restore, because they belong to extensions. */
export async function listSchemas(client: SqlClient, id: string): Promise<string[]> {
  const rows = await client.query<{ name: string }>(
    id,
    copyDatabase,
    `select nspname as name from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'`,
  )
  return rows.map(({ name }) => name)
}

export async function measureCopy(client: SqlClient, id: string): Promise<number> {
  const [row] = await client.query<{ bytes: string }>(
    id,
    superuser,
    'select pg_database_size(datname)::text as bytes from pg_database where datname = $1',
    [copyDatabase],
  )
  return Number(row?.bytes ?? 0)
}

export async function canSubscribe(client: SqlClient, id: string): Promise<boolean> {
  const [row] = await client.query<{ workers: string }>(
    id,
    superuser,
    `select current_setting('max_logical_replication_workers') as workers`,
  )
  return Number(row!.workers) > 0
}

const subscription = quoteIdentifier(importRole)

/**
 * The owner of the subscription is a schema admin, as whom changes are applied, so that triggers of a tenant never run as
 * superuser. The password is in a file outside of the data directory, and so in no backup.
 */
export async function subscribe(
  client: SqlClient,
  home: Home,
  id: string,
  { uid }: ImportSpec,
  { id: importId, source }: ImportTask,
): Promise<void> {
  const { sockets } = importPaths(home, id)
  const passwords = `${sockets}/password`
  const line = passwordLine(sockets, sourcePort, source)
  ensureFile(passwords, line, { mode: 0o600, uid: (await clusterUsers(uid)).server?.uid })
  if (await isSubscribed(client, id)) return
  const settings = {
    host: sockets,
    port: String(sourcePort),
    user: source.user,
    dbname: source.database,
    passfile: passwords,
  }
  const connection = Object.entries(settings).map(([name, value]) => `${name}='${value.replaceAll(/['\\]/g, '\\$&')}'`)
  const name = replicationName(importId)
  await client.query(
    id,
    copyDatabase,
    `CREATE SUBSCRIPTION ${subscription} CONNECTION ${quoteLiteral(connection.join(' '))}
       PUBLICATION ${quoteIdentifier(name)} WITH (create_slot = false, slot_name = ${quoteIdentifier(name)},
         copy_data = false, enabled = false, password_required = false);
     ALTER SUBSCRIPTION ${subscription} OWNER TO ${quoteIdentifier(importRole)};
     ALTER SUBSCRIPTION ${subscription} ENABLE`,
  )
}

export async function isSubscribed(client: SqlClient, id: string): Promise<boolean> {
  const rows = await client.query(
    id,
    superuser,
    `select 1 from pg_subscription join pg_database on pg_database.oid = subdbid where datname = $1 and subname = $2`,
    [copyDatabase, importRole],
  )
  return rows.length > 0
}

/** How often a change could not be applied, such as because of a constraint that only the copy has. */
export async function countApplyErrors(client: SqlClient, id: string): Promise<number> {
  const [row] = await client.query<{ errors: string }>(
    id,
    superuser,
    'select apply_error_count::text as errors from pg_stat_subscription_stats where subname = $1',
    [importRole],
  )
  return Number(row?.errors ?? 0)
}

/** Without its slot, which `cleanSource` drops: the source may be out of reach. */
export async function unsubscribe(client: SqlClient, id: string): Promise<void> {
  if (!(await isSubscribed(client, id))) return
  await client.query(
    id,
    copyDatabase,
    `ALTER SUBSCRIPTION ${subscription} DISABLE;
     ALTER SUBSCRIPTION ${subscription} SET (slot_name = NONE);
     DROP SUBSCRIPTION ${subscription}`,
  )
}

export async function setSequences(client: SqlClient, id: string, sequences: SequenceValue[]): Promise<void> {
  await client.query(
    id,
    copyDatabase,
    `select pg_catalog.setval(name::regclass, value::bigint, called)
     from jsonb_to_recordset($1::jsonb) as known (name text, value text, called boolean) where to_regclass(name) is not null`,
    [JSON.stringify(sequences)],
  )
}

/** A copy that no longer exists has become the target. */
export async function replaceTarget(client: SqlClient, id: string, database: string): Promise<void> {
  if (!(await hasCopy(client, id))) return
  if (await databaseExists(client, id, database)) {
    const problem = await findTargetProblem(client, id, database)
    if (problem) throw new SourceError(problem, false)
    await client.closeConnections(id, database)
    await client.query(id, superuser, `DROP DATABASE ${quoteIdentifier(database)} WITH (FORCE)`)
  }
  await client.closeConnections(id, copyDatabase)
  await client.query(id, superuser, 'select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = $1', [
    copyDatabase,
  ])
  await client.query(
    id,
    superuser,
    `ALTER DATABASE ${quoteIdentifier(copyDatabase)} RENAME TO ${quoteIdentifier(database)}`,
  )
}

/** The role is created first and dropped last, so without it there is nothing of an import. */
export async function dropCopy(client: SqlClient, id: string): Promise<void> {
  const roles = await client.query(id, superuser, 'select 1 from pg_roles where rolname = $1', [importRole])
  if (roles.length === 0) return
  await unsubscribe(client, id)
  await client.closeConnections(id, copyDatabase)
  await client.query(id, superuser, `DROP DATABASE IF EXISTS ${quoteIdentifier(copyDatabase)} WITH (FORCE)`)
  await client.query(id, superuser, `DROP ROLE IF EXISTS ${quoteIdentifier(importRole)}`)
}
