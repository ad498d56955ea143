// What users may do. PostgreSQL's own roles pg_read_all_data and pg_write_all_data cover whatever anybody makes, but its
// catalogs too: with them a reader sees what passwords are checked against, and a writer deletes databases through a
// view of statistics. So a trigger of every database grants what is made as it is made, whoever makes it.
import type { PostgresDriver } from '../server.ts'
import { quoteIdentifier } from './quote.ts'
import type { Asker } from './role.ts'

export const poolerUser = 'berth_pooler'

/** Its owner may take the right to connect from everybody; the pooler then still has to ask who may come. */
export function letPoolerConnect(database: string): string {
  return `GRANT CONNECT ON DATABASE ${quoteIdentifier(database)} TO ${poolerUser}`
}

/** Each role may do what the lesser one may. */
export const roleChain = `
  GRANT reader TO writer;
  GRANT writer TO schema_admin;
`

/**
 * Everybody may make large objects otherwise, and they stay. What PostgreSQL itself grants at the beginning is left out
 * of dumps, and so is this.
 */
const largeObjects = `
  SET LOCAL allow_system_table_mods = on;
  REVOKE EXECUTE ON FUNCTION lo_creat, lo_create, lo_from_bytea FROM PUBLIC;
  GRANT EXECUTE ON FUNCTION lo_creat, lo_create, lo_from_bytea TO writer;
  INSERT INTO pg_catalog.pg_init_privs (objoid, classoid, objsubid, privtype, initprivs)
  SELECT oid, 'pg_catalog.pg_proc'::regclass, 0, 'i', proacl FROM pg_catalog.pg_proc
  WHERE proname IN ('lo_creat', 'lo_create', 'lo_from_bytea');
`

/**
 * Temporary objects are of one session. A view that is replaced keeps its grants, unlike one whose type is as new as our
 * transaction: its owner may have revoked some. The trigger counts as a part of plpgsql, so that a dump leaves it out: who
 * loads the dump into another cluster may make no triggers of this kind.
 */
export const sharing = `${largeObjects}
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

const shareWhatIsThere = `
  SELECT pg_berth.share('pg_catalog.pg_namespace'::regclass, oid) FROM pg_catalog.pg_namespace
  WHERE oid >= 16384 AND nspname !~ '^pg_' OR nspname = 'public';
  SELECT pg_berth.share('pg_catalog.pg_class'::regclass, oid) FROM pg_catalog.pg_class
  WHERE oid >= 16384;
`

const oldRoles = 'pg_read_all_data, pg_write_all_data'

/** For a cluster, or a backup of one, from before there was the trigger. Whatever stops it, the roles go last. */
export async function ensureRights(
  postgres: Pick<PostgresDriver, 'query' | 'closeConnections'>,
  id: string,
): Promise<void> {
  const [old] = await postgres.query(
    id,
    'postgres',
    `select 1 from pg_auth_members where roleid = 'pg_read_all_data'::regrole and member = 'reader'::regrole`,
  )
  if (!old) return
  const databases = await postgres.query<{ name: string }>(
    id,
    'postgres',
    // What the end of its deletion was lost of can be connected to no more.
    `select datname as name from pg_database where datallowconn and datconnlimit <> -2 and datname <> 'postgres'`,
  )
  for (const { name } of databases) {
    await shareDatabase(postgres, id, name)
    if (name !== 'template1') await postgres.query(id, 'postgres', letPoolerConnect(name))
  }
  // Somebody connected to it keeps databases from being made.
  await postgres.closeConnections(id, 'template1')
  await postgres.query(id, 'postgres', `${roleChain} REVOKE ${oldRoles} FROM schema_admin, writer, reader`)
}

async function shareDatabase(postgres: Asker, id: string, database: string): Promise<void> {
  const [shared] = await postgres.query(
    id,
    database,
    `select 1 from pg_catalog.pg_event_trigger where evtname = 'berth_share'`,
  )
  if (!shared) await postgres.query(id, database, sharing + shareWhatIsThere)
}
