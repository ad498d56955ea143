// The rights of the user roles. PostgreSQL's own roles pg_read_all_data and pg_write_all_data cover all objects, but the
// system catalogs too: a reader could read password verifiers, and a writer could delete rows of the catalogs through
// updatable views. So an event trigger in every database grants access to each new object when it is created.
import type { SqlClient } from './driver.ts'
import { poolerUser, superuser } from './platform-role.ts'
import { quoteIdentifier } from './quote.ts'

/** Needed because the owner of a database may revoke CONNECT from PUBLIC, and PgBouncer must still look up passwords. */
export function grantPoolerConnect(database: string): string {
  return `GRANT CONNECT ON DATABASE ${quoteIdentifier(database)} TO ${poolerUser}`
}

/**
 * PgBouncer calls this function for the password of a client. pg_dump leaves out schemas whose name starts with pg_, so
 * that a dump of one cluster loads into another without errors about objects of the platform.
 */
export const lookupFunction = `
  SET LOCAL allow_system_table_mods = on;
  CREATE SCHEMA pg_berth;
  CREATE FUNCTION pg_berth.lookup(name text) RETURNS TABLE (username text, password text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
      SELECT rolname::text, rolpassword FROM pg_authid
      WHERE rolname = name AND rolcanlogin AND NOT rolsuper AND rolname <> '${poolerUser}'
        AND (rolvaliduntil IS NULL OR rolvaliduntil > now())
    $$;
  REVOKE ALL ON FUNCTION pg_berth.lookup FROM PUBLIC;
`

export const lookupGrants = `
  GRANT USAGE ON SCHEMA pg_berth TO ${poolerUser};
  GRANT EXECUTE ON FUNCTION pg_berth.lookup TO ${poolerUser};
`

export const lookup = lookupFunction + lookupGrants.trimStart()

/**
 * Admins connect to the database of the platform to create others, because many programs do that by default. They can
 * create nothing in it: large objects and temporary tables are the only objects for which PUBLIC has a right.
 */
export const openPlatformDatabase = `
  REVOKE EXECUTE ON FUNCTION pg_catalog.lo_creat, pg_catalog.lo_create, pg_catalog.lo_from_bytea FROM PUBLIC;
  REVOKE ALL ON DATABASE ${superuser} FROM PUBLIC;
  GRANT CONNECT ON DATABASE ${superuser} TO schema_admin, ${poolerUser};
`

/** The right to create databases belongs to the group, whose role the sessions of admins have. */
export const allowCreateDatabase = 'ALTER ROLE schema_admin CREATEDB'

/** Each role includes the rights of the next lower one. */
export const roleChain = `
  GRANT reader TO writer;
  GRANT writer TO schema_admin;
`

/**
 * By default PUBLIC, and so a reader too, may create large objects. Recording the change as an initial privilege makes
 * pg_dump leave it out, like the grants of PostgreSQL itself.
 */
export const largeObjects = `
  SET LOCAL allow_system_table_mods = on;
  REVOKE EXECUTE ON FUNCTION lo_creat, lo_create, lo_from_bytea FROM PUBLIC;
  GRANT EXECUTE ON FUNCTION lo_creat, lo_create, lo_from_bytea TO writer;
  INSERT INTO pg_catalog.pg_init_privs (objoid, classoid, objsubid, privtype, initprivs)
  SELECT oid, 'pg_catalog.pg_proc'::regclass, 0, 'i', proacl FROM pg_catalog.pg_proc
  WHERE proname IN ('lo_creat', 'lo_create', 'lo_from_bytea');
`

/**
 * The trigger skips temporary objects and views that CREATE OR REPLACE has changed: these keep their grants, of which the
 * owner may have revoked some. A new view is recognized by its row type, which is as new as the transaction. The trigger
 * is made a member of plpgsql, so that pg_dump leaves it out: only superusers could load a dump with an event trigger.
 */
export const shareTrigger = `
  CREATE FUNCTION pg_berth.share(class oid, object oid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
      DECLARE
        kind "char" := (SELECT relkind FROM pg_class
          WHERE class = 'pg_class'::regclass AND pg_class.oid = object AND relpersistence <> 't');
      BEGIN
        IF class = 'pg_namespace'::regclass THEN
          EXECUTE format('GRANT USAGE ON SCHEMA %s TO reader', object::regnamespace);
        ELSIF kind = 'S' THEN
          EXECUTE format('GRANT SELECT ON SEQUENCE %s TO reader', object::regclass);
          EXECUTE format('GRANT USAGE, UPDATE ON SEQUENCE %s TO writer', object::regclass);
        ELSIF kind IN ('r', 'p', 'v', 'm', 'f') THEN
          EXECUTE format('GRANT SELECT ON TABLE %s TO reader', object::regclass);
          EXECUTE format('GRANT INSERT, UPDATE, DELETE ON TABLE %s TO writer', object::regclass);
        END IF;
      END
    $$;
  CREATE FUNCTION pg_berth.share_new() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
      BEGIN
        PERFORM pg_berth.share(classid, objid) FROM pg_event_trigger_ddl_commands()
        WHERE classid IN ('pg_class'::regclass, 'pg_namespace'::regclass) AND command_tag ~ '^(CREATE|SELECT) '
          AND NOT EXISTS (SELECT FROM pg_class JOIN pg_type ON pg_type.oid = reltype
            WHERE classid = 'pg_class'::regclass AND pg_class.oid = objid AND relkind = 'v' AND age(pg_type.xmin) > 0);
      END
    $$;
  REVOKE ALL ON FUNCTION pg_berth.share, pg_berth.share_new FROM PUBLIC;
  CREATE EVENT TRIGGER berth_share ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'CREATE EXTENSION', 'CREATE FOREIGN TABLE', 'CREATE MATERIALIZED VIEW', 'CREATE SCHEMA',
      'CREATE SEQUENCE', 'CREATE TABLE', 'CREATE TABLE AS', 'CREATE VIEW', 'IMPORT FOREIGN SCHEMA', 'SELECT INTO')
    EXECUTE FUNCTION pg_berth.share_new();
  ALTER EXTENSION plpgsql ADD EVENT TRIGGER berth_share;
`

export const sharing = largeObjects + shareTrigger

/** Sessions of the platform run no event triggers. This lets the trigger share what the rest of the batch creates. */
export const allowEventTriggers = `SELECT pg_catalog.set_config(name, 'on', true) FROM pg_catalog.pg_settings
  WHERE name = 'event_triggers'`

const shareExistingObjects = `
  SELECT pg_berth.share('pg_catalog.pg_namespace'::regclass, oid) FROM pg_catalog.pg_namespace
  WHERE oid >= 16384 AND nspname !~ '^pg_' OR nspname = 'public';
  SELECT pg_berth.share('pg_catalog.pg_class'::regclass, oid) FROM pg_catalog.pg_class
  WHERE oid >= 16384;
`

/** Creates what every database of a cluster has, where it is missing. */
export async function completeDatabase(client: SqlClient, id: string, database: string): Promise<void> {
  const [found] = await client.query<{ lookup: boolean; shared: boolean }>(
    id,
    database,
    `select exists (select from pg_catalog.pg_namespace where nspname = 'pg_berth') as lookup,
       exists (select from pg_catalog.pg_event_trigger where evtname = 'berth_share') as shared`,
  )
  if (!found!.lookup) await client.query(id, database, lookup)
  if (!found!.shared) await client.query(id, database, sharing + shareExistingObjects)
}
