// A new cluster starts as a copy of a template data directory with the roles, the database and the grants that every
// cluster has. There is one template per PostgreSQL installation, named by a hash of the commands that create it.
import { createHash } from 'node:crypto'
import { chownSync, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { defaultDatabase, defaultUser } from '../../model/postgres/cluster.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import { removeAbandonedFiles, temporaryPath } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { isRoot, run } from '../host/process.ts'
import { poolerUser, superuser } from './sql/platform-role.ts'
import {
  allowCreateDatabase,
  grantPoolerConnect,
  lookup,
  openPlatformDatabase,
  roleChain,
  sharing,
} from './sql/rights.ts'
import { hasLibrary } from './toolchain/tools.ts'

/**
 * Sessions of admins switch to the group of admins (`SET role`), so that every admin owns what one of them creates. As the
 * group, an admin needs `pg_signal_backend` even to end sessions of the same user.
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

// A session in a template would make every CREATE DATABASE fail. The pooler's right on template0 tells that it is complete.
const database = `
  CREATE DATABASE "${defaultDatabase}" OWNER schema_admin STRATEGY file_copy;

  ${grantPoolerConnect(defaultDatabase)};
  ${grantPoolerConnect('template0')};
  REVOKE CONNECT ON DATABASE template0, template1 FROM PUBLIC;
  ${openPlatformDatabase.trim()}
  ${allowCreateDatabase};
`

/** Returns the directory to copy from. If two processes create it at the same time, the first rename wins. */
export async function ensureTemplate(toolchain: Toolchain, home: Home): Promise<string> {
  const steps = templateSteps(toolchain)
  const hash = createHash('sha256').update(JSON.stringify([toolchain.bin, toolchain.version, steps, 'readable']))
  const template = `${home.toolchain}/template-${toolchain.version}-${hash.digest('hex').slice(0, 12)}`
  if (existsSync(template)) return template
  await removeAbandonedFiles(home.toolchain)
  const fresh = temporaryPath(home.toolchain)
  try {
    await createTemplate(fresh, toolchain, steps)
    renameSync(fresh, template)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    if (!existsSync(template)) throw new Error(`create the template of PostgreSQL ${toolchain.version}`, { cause })
  }
  return template
}

interface TemplateSteps {
  initdb: string[]
  template1: string
  template0: string
  postgres: string
}

function templateSteps(toolchain: Toolchain): TemplateSteps {
  const statements = hasLibrary(toolchain, 'pg_stat_statements') ? '\n  CREATE EXTENSION pg_stat_statements;\n' : ''
  return {
    initdb: initdbOptions(toolchain),
    template1: roles + lookup + sharing + statements,
    // Tenants can copy this one too. Frozen, as initdb leaves it, because autovacuum does not visit it regularly.
    template0: `${lookup + sharing + statements}\n  VACUUM FREEZE;\n`,
    postgres: lookup + database,
  }
}

export function initdbOptions({ major }: Pick<Toolchain, 'major'>): string[] {
  const builtin = ['--locale-provider=builtin', '--builtin-locale=C.UTF-8']
  const locale = ['--locale=C.UTF-8', ...(major === '16' ? [] : builtin)]
  return ['--username', superuser, '--auth=reject', '--encoding=UTF8', '--data-checksums', ...locale]
}

async function createTemplate(directory: string, toolchain: Toolchain, steps: TemplateSteps): Promise<void> {
  // initdb requires a user with a name, which the uids of clusters do not have.
  const uid = isRoot() ? Number((await run('id', ['-u', 'nobody'])).stdout) : undefined
  mkdirSync(directory, { mode: 0o700 })
  if (uid !== undefined) chownSync(directory, uid, uid)
  const initdb = ['-D', directory, '--no-instructions', '--no-sync', ...steps.initdb]
  await run(`${toolchain.bin}/initdb`, initdb, { uid })
  await runSingle(directory, toolchain, uid, 'template1', steps.template1)
  await runSingle(directory, toolchain, uid, 'template0', steps.template0)
  await runSingle(directory, toolchain, uid, 'postgres', steps.postgres)
  if (uid !== undefined) await run('chown', ['-R', '0:0', directory])
  // Each cluster is copied by its own user, and the template contains no secrets.
  await run('chmod', ['-R', 'a+rX', directory])
  await run('sync', ['-f', directory])
}

/**
 * Runs statements in single-user mode, which ends with a checkpoint. Objects created in this mode get oids below 16384,
 * like those of initdb, and pg_dump takes them for part of PostgreSQL.
 */
async function runSingle(
  data: string,
  toolchain: Toolchain,
  uid: number | undefined,
  database: string,
  sql: string,
): Promise<void> {
  // With -j an empty line ends a batch of statements; without it, every line is a statement of its own.
  const args = ['--single', '-j', '-D', data, '-c', 'exit_on_error=on', database]
  await run(`${toolchain.bin}/postgres`, args, { uid, input: sql })
}
