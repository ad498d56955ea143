// A new cluster is a copy of a data directory that is made once for each installation, with the roles, the database and
// the grants that every cluster has. Its name carries a hash of all that went into it: a change here makes a new one.
import { createHash } from 'node:crypto'
import { chownSync, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { defaultDatabase, defaultUser } from '../../model/postgres/cluster.ts'
import { freshName, removeAbandoned } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { isRoot, run } from '../host/process.ts'
import { letPoolerConnect, poolerUser, roleChain, sharing } from './sql/rights.ts'
import type { Toolchain } from './toolchain/toolchain.ts'
import { hasLibrary } from './toolchain/tools.ts'

export const superuser = 'postgres'

/**
 * Admins act as their group (`SET role`), so that what one of them makes belongs to all of them. Acting as the group, an
 * admin could not even end his own sessions without `pg_signal_backend`.
 */
const roles = `
  CREATE ROLE schema_admin NOLOGIN;
  CREATE ROLE writer NOLOGIN;
  CREATE ROLE reader NOLOGIN;
  ${roleChain.trim()}
  GRANT pg_monitor, pg_signal_backend TO schema_admin;
  CREATE ROLE ${poolerUser} LOGIN;
  GRANT pg_use_reserved_connections TO ${poolerUser};
  CREATE ROLE "${defaultUser}" LOGIN IN ROLE schema_admin;
  ALTER ROLE "${defaultUser}" SET role = 'schema_admin';
`

/**
 * The pooler asks here for the password of a client. Schemas whose name begins with pg_ are left out of dumps, so that
 * a dump of one cluster loads into another without an error about something that is the platform's.
 */
const lookup = `
  SET allow_system_table_mods = on;
  CREATE SCHEMA pg_berth;
  CREATE FUNCTION pg_berth.lookup(name text) RETURNS TABLE (username text, password text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
      SELECT rolname::text, rolpassword FROM pg_authid
      WHERE rolname = name AND rolcanlogin AND NOT rolsuper AND rolname <> '${poolerUser}'
        AND (rolvaliduntil IS NULL OR rolvaliduntil > now())
    $$;
  REVOKE ALL ON FUNCTION pg_berth.lookup FROM PUBLIC;
  GRANT USAGE ON SCHEMA pg_berth TO ${poolerUser};
  GRANT EXECUTE ON FUNCTION pg_berth.lookup TO ${poolerUser};
`

// Somebody connected to template1 would keep every database from being made, and the other one is the platform's.
const database = `
  CREATE DATABASE "${defaultDatabase}" OWNER schema_admin STRATEGY file_copy;

  ${letPoolerConnect(defaultDatabase)};
  REVOKE CONNECT ON DATABASE ${superuser}, template1 FROM PUBLIC;
`

/** The directory to copy from. Of two processes that make it at once one gives way. */
export async function ensureTemplate(toolchain: Toolchain, home: Home): Promise<string> {
  const steps = templateSteps(toolchain)
  const hash = createHash('sha256').update(JSON.stringify([toolchain.bin, toolchain.version, steps, 'readable']))
  const template = `${home.toolchain}/template-${toolchain.version}-${hash.digest('hex').slice(0, 12)}`
  if (existsSync(template)) return template
  await removeAbandoned(home.toolchain)
  const fresh = freshName(home.toolchain)
  try {
    await makeTemplate(fresh, toolchain, steps)
    renameSync(fresh, template)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    if (!existsSync(template)) throw new Error(`make the template of PostgreSQL ${toolchain.version}`, { cause })
  }
  return template
}

interface TemplateSteps {
  initdb: string[]
  template1: string
  postgres: string
}

function templateSteps(toolchain: Toolchain): TemplateSteps {
  const builtin = ['--locale-provider=builtin', '--builtin-locale=C.UTF-8']
  const locale = ['--locale=C.UTF-8', ...(toolchain.major === '16' ? [] : builtin)]
  const statements = hasLibrary(toolchain, 'pg_stat_statements') ? '\n  CREATE EXTENSION pg_stat_statements;\n' : ''
  return {
    initdb: ['--username', superuser, '--auth=trust', '--encoding=UTF8', '--data-checksums', ...locale],
    template1: roles + lookup + sharing + statements,
    postgres: database,
  }
}

async function makeTemplate(directory: string, toolchain: Toolchain, steps: TemplateSteps): Promise<void> {
  // initdb wants a name for its user, which the uids of clusters do not have.
  const uid = isRoot() ? Number((await run('id', ['-u', 'nobody'])).stdout) : undefined
  mkdirSync(directory, { mode: 0o700 })
  if (uid !== undefined) chownSync(directory, uid, uid)
  const initdb = ['-D', directory, '--no-instructions', '--no-sync', ...steps.initdb]
  await run(`${toolchain.bin}/initdb`, initdb, { uid })
  await runSingle(directory, toolchain, uid, 'template1', steps.template1)
  await runSingle(directory, toolchain, uid, 'postgres', steps.postgres)
  if (uid !== undefined) await run('chown', ['-R', '0:0', directory])
  // Each cluster is copied by its own user, and there is nothing in it that he could not know.
  await run('chmod', ['-R', 'a+rX', directory])
  await run('sync', ['-f', directory])
}

/**
 * The server without a postmaster, which ends with a checkpoint. What it makes gets a number below 16384, as what
 * initdb makes, and pg_dump takes it for part of PostgreSQL.
 */
async function runSingle(
  data: string,
  toolchain: Toolchain,
  uid: number | undefined,
  database: string,
  sql: string,
): Promise<void> {
  // With -j what stands between empty lines happens together; without, each line is a statement.
  const args = ['--single', '-j', '-D', data, '-c', 'exit_on_error=on', database]
  await run(`${toolchain.bin}/postgres`, args, { uid, input: sql })
}
