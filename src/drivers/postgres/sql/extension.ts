import { invalid, notFound } from '../../../model/errors.ts'
import type { Row } from './connection.ts'
import { reservedName } from './error.ts'
import { quoteIdentifier } from './quote.ts'
import type { Asker } from './role.ts'

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
  const offered = await listOffered(postgres, id, database)
  const steps = planInstall(offered, name, schema)
  if (createSchema && schema !== undefined && !isAlone(offered.get(name)!)) steps.unshift(createSchemaFor(schema))
  await postgres.query(id, database, steps.join('; '))
}

interface Offered extends Row {
  name: string
  /** The only one it may be in. */
  schema: string | null
  trusted: boolean
  relocatable: boolean
  requires: string[]
  installed: boolean
}

async function listOffered(postgres: Asker, id: string, database: string): Promise<Map<string, Offered>> {
  const rows = await postgres.query<Offered>(
    id,
    database,
    `select name, schema, trusted, relocatable, coalesce(requires::text[], '{}') as requires,
       installed_version is not null as installed
     from pg_available_extension_versions join pg_available_extensions using (name)
     where version = default_version`,
  )
  return new Map(rows.map((row) => [row.name, row]))
}

function planInstall(
  offered: Map<string, Offered>,
  name: string,
  schema: string | undefined,
  planned = new Set<string>(),
): string[] {
  const extension = offered.get(name)
  if (extension === undefined || refused.test(name)) throw notFound(`Extension ${name} not found`)
  if (schema !== undefined && schema !== extension.schema && isSystemSchema(schema)) {
    throw invalid(`extension ${name} cannot be in schema ${schema}, which is part of PostgreSQL`)
  }
  planned.add(name)
  const needed = extension.requires.map(
    (other) => offered.get(other) ?? { name: other, schema: null, installed: false },
  )
  const missing = needed.filter((other) => !other.installed && !planned.has(other.name))
  return [
    ...missing.flatMap((other) => planInstall(offered, other.name, other.schema ?? schema, planned)),
    ...installOne(extension, schema),
  ]
}

function isSystemSchema(name: string): boolean {
  return name.startsWith('pg_') || name === 'information_schema'
}

/**
 * Scripts of extensions run as superuser and look for what they name in the schema they install into, where a tenant
 * may have put things of the same names before. Those that PostgreSQL trusts are written with that in mind, and a tenant
 * may install them himself, so it is done in his name. The script of any other runs where only the platform makes
 * things, and what it made is then moved or given away.
 */
function installOne(extension: Offered, schema: string | undefined): string[] {
  const { name, trusted, relocatable } = extension
  const create = `CREATE EXTENSION ${quoteIdentifier(name)}`
  if (trusted) {
    // Some insist on a schema; the others would go where our search path leads, which is nowhere.
    const place = schema ?? (extension.schema === null ? 'public' : undefined)
    const into = place === undefined ? '' : `SCHEMA ${quoteIdentifier(place)}`
    return ['SET LOCAL ROLE schema_admin', `${create} ${into}`, 'SET LOCAL ROLE none']
  }
  if (relocatable) {
    const move = `ALTER EXTENSION ${quoteIdentifier(name)} SET SCHEMA ${quoteIdentifier(schema ?? 'public')}`
    return [`${create} SCHEMA pg_berth`, move, ...sharesOf(name)]
  }
  if (!isAlone(extension)) return [create]
  const own = quoteIdentifier(schema ?? extension.schema ?? name)
  return [`CREATE SCHEMA ${own}`, `${create} SCHEMA ${own}`, `ALTER SCHEMA ${own} OWNER TO schema_admin`]
}

/** Its schema is made with it: it cannot be moved into one that is there. */
function isAlone({ trusted, relocatable, schema }: Offered): boolean {
  return !trusted && !relocatable && schema !== 'pg_catalog'
}

function createSchemaFor(name: string): string {
  return `CREATE SCHEMA IF NOT EXISTS ${quoteIdentifier(name)} AUTHORIZATION schema_admin`
}

// Without it only a superuser could name a server.
function sharesOf(name: string): string[] {
  return name === 'postgres_fdw' ? ['GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO schema_admin'] : []
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
