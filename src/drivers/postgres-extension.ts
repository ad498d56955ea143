import { notFound } from '../model/errors.ts'
import { reservedName } from './postgres-error.ts'
import type { Asker } from './postgres-role.ts'
import { quoteIdentifier } from './postgres-sql.ts'

export interface DatabaseExtension {
  name: string
  description: string | null
  defaultVersion: string
  /** Part of every database; it cannot be taken away. */
  system: boolean
  installed: { version: string; schema: string } | null
}

const systemExtensions: readonly string[] = ['plpgsql', 'pg_stat_statements']

// These give a way to the files or the programs of the machine, and PostgreSQL lets superusers use them only.
const refused = /^(adminpack|file_fdw|pg_surgery|pltclu|.*plperlu|.*plpython3u)$/

export async function listDatabaseExtensions(
  postgres: Asker,
  id: string,
  database: string,
): Promise<DatabaseExtension[]> {
  const rows = await postgres.query<{
    name: string
    description: string
    version: string
    installed: string | null
    schema: string
  }>(
    id,
    database,
    `select available.name, comment as description, default_version as version, extversion as installed, nspname as schema
     from pg_available_extensions available
     left join pg_extension on extname = available.name
     left join pg_namespace on pg_namespace.oid = extnamespace
     order by available.name`,
  )
  return rows
    .filter((row) => !refused.test(row.name))
    .map(({ name, description, version, installed, schema }) => ({
      name,
      description,
      defaultVersion: version,
      system: systemExtensions.includes(name),
      installed: installed === null ? null : { version: installed, schema },
    }))
}

export interface EnableOptions {
  schema?: string | undefined
  /** Makes the schema unless it is there. */
  createSchema?: boolean | undefined
}

/** With those it needs. Refuses one that is there with `conflict` and one that is unknown with `not_found`. */
export async function enableExtension(
  postgres: Asker,
  id: string,
  database: string,
  name: string,
  { schema, createSchema = false }: EnableOptions = {},
): Promise<void> {
  const [known] = await postgres.query<{ schema: string | null }>(
    id,
    database,
    'select schema from pg_available_extension_versions where name = $1 limit 1',
    [name],
  )
  if (known === undefined || refused.test(name)) throw notFound(`Extension ${name} not found`)
  // Some insist on a schema; the others would go where our search path leads, which is nowhere.
  const place = schema ?? known.schema ?? 'public'
  const needsSchema = createSchema || place === known.schema
  const prepare = needsSchema && place !== 'pg_catalog' ? createSchemaFor(place) : ''
  const fixed = known.schema === null || schema !== undefined ? `SCHEMA ${quoteIdentifier(place)}` : ''
  await postgres.query(id, database, `${prepare} CREATE EXTENSION ${quoteIdentifier(name)} ${fixed} CASCADE`)
  if (name === 'postgres_fdw') await shareWrapper(postgres, id, database)
}

function createSchemaFor(name: string): string {
  return `CREATE SCHEMA IF NOT EXISTS ${quoteIdentifier(name)} AUTHORIZATION schema_admin;`
}

// Without it only a superuser could name a server.
async function shareWrapper(postgres: Asker, id: string, database: string): Promise<void> {
  await postgres.query(id, database, 'GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO schema_admin')
}

/** What depends on it is a `conflict`, or goes with it. */
export async function disableExtension(
  postgres: Asker,
  id: string,
  database: string,
  name: string,
  { cascade = false }: { cascade?: boolean } = {},
): Promise<void> {
  if (systemExtensions.includes(name)) throw reservedName(name)
  await postgres.query(id, database, `DROP EXTENSION ${quoteIdentifier(name)} ${cascade ? 'CASCADE' : 'RESTRICT'}`)
}
