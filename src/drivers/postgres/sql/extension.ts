import { invalid, notFound } from '../../../model/errors.ts'
import { isRefusedExtension } from '../../../model/postgres/extension.ts'
import type { DatabaseExtension, EnableOptions, ExtensionAdmin, Row, SqlClient } from './driver.ts'
import { reservedName } from './error.ts'
import { quoteIdentifier } from './quote.ts'
import { allowEventTriggers } from './rights.ts'

const systemExtensions: readonly string[] = ['plpgsql', 'pg_stat_statements']

export function extensionAdmin(client: SqlClient): ExtensionAdmin {
  return {
    list: (id, database) => listExtensions(client, id, database),
    enable: (id, database, name, options) => enableExtension(client, id, database, name, options),
    async enableInNew(id, database, name) {
      const create = `CREATE EXTENSION IF NOT EXISTS ${quoteIdentifier(name)} SCHEMA public CASCADE`
      await client.query(id, database, [allowEventTriggers, create].join('; '))
    },
    async disable(id, database, name, { cascade = false } = {}) {
      if (systemExtensions.includes(name)) throw reservedName(name)
      await client.query(id, database, `DROP EXTENSION ${quoteIdentifier(name)} ${cascade ? 'CASCADE' : 'RESTRICT'}`)
    },
  }
}

async function listExtensions(client: SqlClient, id: string, database: string): Promise<DatabaseExtension[]> {
  const rows = await client.query<{
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
    .filter((row) => !isRefusedExtension(row.name))
    .map(({ name, description, version, installed, schema }) => ({
      name,
      description,
      defaultVersion: version,
      system: systemExtensions.includes(name),
      installed: installed === null ? null : { version: installed, schema },
    }))
}

async function enableExtension(
  client: SqlClient,
  id: string,
  database: string,
  name: string,
  { schema, createSchema = false }: EnableOptions = {},
): Promise<void> {
  const offered = await listOffered(client, id, database)
  const steps = planInstall(offered, name, schema)
  if (createSchema && schema !== undefined && !needsOwnSchema(offered.get(name)!))
    steps.unshift(createSchemaFor(schema))
  await client.query(id, database, [allowEventTriggers, ...steps].join('; '))
}

interface Offered extends Row {
  name: string
  /** Set if the extension can only be installed into this schema. */
  schema: string | null
  trusted: boolean
  relocatable: boolean
  requires: string[]
  installed: boolean
}

async function listOffered(client: SqlClient, id: string, database: string): Promise<Map<string, Offered>> {
  const rows = await client.query<Offered>(
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
  if (extension === undefined || isRefusedExtension(name)) throw notFound(`Extension ${name} not found`)
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
 * The script of an extension runs as superuser and resolves names in the schema it installs into, where a tenant may have
 * planted functions of the same names. Extensions that PostgreSQL marks as trusted are written with that in mind, and
 * tenants may install them themselves, so these are installed with the rights of the tenant. Any other script runs in a
 * schema that only the platform can write to, and its objects are moved or given away afterwards.
 */
function installOne(extension: Offered, schema: string | undefined): string[] {
  const { name, trusted, relocatable } = extension
  const create = `CREATE EXTENSION ${quoteIdentifier(name)}`
  if (trusted) {
    // Our search path is empty, so an extension without a fixed schema needs one.
    const target = schema ?? (extension.schema === null ? 'public' : undefined)
    const into = target === undefined ? '' : `SCHEMA ${quoteIdentifier(target)}`
    return ['SET LOCAL ROLE schema_admin', `${create} ${into}`, 'SET LOCAL ROLE none']
  }
  if (relocatable) {
    const move = `ALTER EXTENSION ${quoteIdentifier(name)} SET SCHEMA ${quoteIdentifier(schema ?? 'public')}`
    return [`${create} SCHEMA pg_berth`, move, ...extraGrants(name)]
  }
  if (!needsOwnSchema(extension)) return [create]
  const own = quoteIdentifier(schema ?? extension.schema ?? name)
  return [`CREATE SCHEMA ${own}`, `${create} SCHEMA ${own}`, `ALTER SCHEMA ${own} OWNER TO schema_admin`]
}

/** True if the extension is installed into a schema created for it, because it cannot be moved to another one later. */
function needsOwnSchema({ trusted, relocatable, schema }: Offered): boolean {
  return !trusted && !relocatable && schema !== 'pg_catalog'
}

function createSchemaFor(name: string): string {
  return `CREATE SCHEMA IF NOT EXISTS ${quoteIdentifier(name)} AUTHORIZATION schema_admin`
}

// Without this grant only superusers could create a foreign server.
function extraGrants(name: string): string[] {
  return name === 'postgres_fdw' ? ['GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO schema_admin'] : []
}
