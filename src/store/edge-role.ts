// The rights of the edge's role. They are granted at each start, because dumps of the database contain neither roles nor
// rights, and because they then always fit the version that runs.
import type { Database, Tx } from './db.ts'

export interface EdgeRole {
  name: string
  /** Given when the control plane manages the role: its SCRAM verifier, or null if it needs no password. */
  verifier?: string | null
}

/** What the edge reads. Columns that are not listed here stay hidden. */
const readable: Record<string, string[]> = {
  app: ['id', 'name', 'org_id', 'network', 'enable_subdomains', 'state'],
  org: ['id', 'cross_network_replays'],
  network: ['number', 'org_id', 'name'],
  ip: ['app_id', 'ip', 'type', 'shared', 'network_number'],
  host: ['app_id', 'hostname'],
  certificate: ['hostname', 'app_id', 'source', 'fullchain', 'private_key'],
  machine_route: ['*'],
  machine_check: ['machine_id', 'name', 'status'],
  machine_load: ['machine_id', 'load', 'at'],
  cluster: ['id', 'number', 'org_id', 'state', 'scratch', 'direct_port', 'pooler_port'],
  attachment: ['cluster_id', 'app_id'],
  sandbox: ['id', 'name', 'org_id', 'slot', 'state', 'url_auth', 'private_access'],
  service: ['sandbox_id', 'name', 'http_port', 'wanted', 'health', 'ready_at', 'failure'],
}

const callable = [
  'request_from_edge(text, text)',
  'find_token_for_edge(bytea)',
  'list_token_expiries_for_edge(bytea[])',
  'put_machine_loads(int, text[], int[])',
]

/** Of the 100 connections that the server accepts, the edge leaves enough for the control plane. */
const maxConnections = 60

// The key of an advisory lock; no other lock may use the same number.
const roleLock = 0x65646765

/** Creates the role if the control plane manages it, and gives it exactly the rights that the edge needs. */
export async function ensureEdgeRole(db: Database, { name, verifier }: EdgeRole): Promise<void> {
  const role = quoteName(name)
  await db.transaction(async (tx) => {
    await tx.query('select pg_advisory_xact_lock($1)', [roleLock])
    if (verifier !== undefined) await ensureRole(tx, name, verifier)
    await revokeDefaults(tx)
    await tx.query(`revoke all on all tables in schema public from ${role}`)
    await tx.query(`revoke all on all functions in schema public from ${role}`)
    for (const [table, columns] of Object.entries(readable)) {
      const list = columns[0] === '*' ? '' : `(${columns.join(', ')})`
      await tx.query(`grant select ${list} on ${table} to ${role}`)
    }
    for (const signature of callable) await tx.query(`grant execute on function ${signature} to ${role}`)
    await tx.query(`do $$ begin execute format('grant connect on database %I to ${role}', current_database()); end $$`)
  })
}

async function ensureRole(tx: Tx, name: string, verifier: string | null): Promise<void> {
  const { rowCount } = await tx.query('select 1 from pg_roles where rolname = $1', [name])
  if (rowCount === 0) await tx.query(`create role ${quoteName(name)}`)
  const password = verifier === null ? 'null' : `'${verifier.replaceAll("'", "''")}'`
  await tx.query(
    `alter role ${quoteName(name)} with login nosuperuser nocreatedb nocreaterole noinherit noreplication nobypassrls
       connection limit ${maxConnections} password ${password}`,
  )
}

/**
 * Takes rights from every role that is not the owner: to connect, to create temporary tables, to call functions. If the
 * owner is a superuser, also to write large objects and to take advisory locks, which would block the control plane.
 */
async function revokeDefaults(tx: Tx): Promise<void> {
  await tx.query(`do $$
    declare found regprocedure;
    begin
      execute format('revoke all on database %I from public', current_database());
      revoke all on schema public from public;
      grant usage on schema public to public;
      revoke all on all functions in schema public from public;
      if (select rolsuper from pg_roles where rolname = current_user) then
        for found in
          select oid::regprocedure from pg_proc
          where pronamespace = 'pg_catalog'::regnamespace and (proname ~ '^pg_(try_)?advisory_'
            or proname in ('lo_creat', 'lo_create', 'lo_from_bytea', 'lo_put', 'lowrite', 'lo_open'))
            and exists (select from aclexplode(coalesce(proacl, acldefault('f', proowner)))
              where grantee = 0 and privilege_type = 'EXECUTE')
        loop
          execute format('revoke execute on function %s from public', found);
        end loop;
      end if;
    end $$`)
}

function quoteName(name: string): string {
  return `"${name.replaceAll('"', '""')}"`
}
