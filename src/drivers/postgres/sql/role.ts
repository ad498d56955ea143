// The users of a cluster. Roles belong to the whole cluster and are administered in the platform's own database; only
// objects that a user owns make it necessary to visit the databases of the tenant.
import { notFound } from '../../../model/errors.ts'
import { waitUntil } from '../../../model/poll.ts'
import { isReservedUser, type UserRole, userRoles } from '../../../model/postgres/user.ts'
import type { SqlClient, User, UserAdmin } from './driver.ts'
import { reservedName } from './error.ts'
import { importRole, poolerUser, superuser } from './platform-role.ts'
import { rollBackPreparedOf, rollBackPreparedRoleChanges } from './prepared.ts'
import { quoteIdentifier, quoteLiteral } from './quote.ts'
import { isVerifierOf, scramVerifier } from './scram.ts'

const platformRoles: readonly string[] = [superuser, poolerUser, importRole, ...userRoles]
// Longer than the lock timeout of a session, so the change has succeeded or failed by then.
const changeTimeoutSeconds = 6
// PostgreSQL ends the sessions of a database first, and removes its directory before the database disappears.
const dropTimeoutSeconds = 2
// A session keeps its rights until its backend has exited.
const terminateTimeoutMs = 5000

export function userAdmin(client: SqlClient): UserAdmin {
  return {
    list: (id) => listUsers(client, id),
    find: (id, name) => findUser(client, id, name),
    create: (id, user) => createUser(client, id, user),
    setRole: (id, user) => setRole(client, id, user),
    setPassword: (id, name, password, options) => setPassword(client, id, name, password, options),
    hasPassword: (id, name, password) => hasPassword(client, id, name, password),
    drop: (id, name) => dropUser(client, id, name),
    clearUnmanagedPasswords: (id) => clearUnmanagedPasswords(client, id),
  }
}

async function listUsers(client: SqlClient, id: string): Promise<User[]> {
  return client.query<{ name: string; role: UserRole }>(
    id,
    superuser,
    `select member.rolname as name, granted.rolname as role
     from pg_roles member
     join pg_auth_members on pg_auth_members.member = member.oid
     join pg_roles granted on granted.oid = pg_auth_members.roleid
     where granted.rolname = any($1) and not member.rolname = any($2)
     order by member.rolname`,
    [userRoles, platformRoles],
  )
}

async function findUser(client: SqlClient, id: string, name: string): Promise<User | undefined> {
  return (await listUsers(client, id)).find((user) => user.name === name)
}

async function getUser(client: SqlClient, id: string, name: string): Promise<User> {
  if (isReservedUser(name)) throw reservedName(name)
  const user = await findUser(client, id, name)
  if (user === undefined) throw notFound('User not found')
  return user
}

async function createUser(
  client: SqlClient,
  id: string,
  { name, role, password }: User & { password: string },
): Promise<void> {
  if (isReservedUser(name)) throw reservedName(name)
  const user = quoteIdentifier(name)
  const verifier = quoteLiteral(scramVerifier(password))
  await client.query(id, superuser, `CREATE ROLE ${user} LOGIN PASSWORD ${verifier}; ${grantRole(name, role)}`)
}

// The sessions of an admin switch to the group of admins, so that the group owns whatever an admin creates.
function grantRole(name: string, role: UserRole): string {
  const user = quoteIdentifier(name)
  const sessionRole = role === 'schema_admin' ? `SET role = 'schema_admin'` : 'RESET role'
  return `GRANT ${role} TO ${user}; ALTER ROLE ${user} ${sessionRole};`
}

async function setRole(client: SqlClient, id: string, { name, role }: User): Promise<void> {
  await getUser(client, id, name)
  const user = quoteIdentifier(name)
  const change = `REVOKE ${userRoles.join(', ')} FROM ${user}; ${grantRole(name, role)}`
  await changeAndEndSessions(client, id, name, change)
  await reassignOwned(client, id, name)
}

async function setPassword(
  client: SqlClient,
  id: string,
  name: string,
  password: string,
  { killSessions = false }: { killSessions?: boolean } = {},
): Promise<void> {
  await getUser(client, id, name)
  const change = `ALTER ROLE ${quoteIdentifier(name)} PASSWORD ${quoteLiteral(scramVerifier(password))}`
  if (killSessions) return changeAndEndSessions(client, id, name, change, rollBackPreparedRoleChanges)
  await rollBackPreparedRoleChanges(client, id)
  await client.query(id, superuser, change)
}

async function hasPassword(client: SqlClient, id: string, name: string, password: string): Promise<boolean> {
  const rows = await client.query<{ verifier: string | null }>(
    id,
    superuser,
    'select rolpassword as verifier from pg_authid where rolname = $1',
    [name],
  )
  return isVerifierOf(rows[0]?.verifier ?? '', password)
}

/** A user that does not exist is no error, so that an interrupted deletion can be repeated. */
async function dropUser(client: SqlClient, id: string, name: string): Promise<void> {
  if (isReservedUser(name)) throw reservedName(name)
  if (!(await findUser(client, id, name))) return
  // This comes first, so that no new session starts before the role is dropped, even if a crash delays that.
  await changeAndEndSessions(client, id, name, `ALTER ROLE ${quoteIdentifier(name)} NOLOGIN`)
  await reassignOwned(client, id, name)
  await client.query(id, superuser, `DROP ROLE ${quoteIdentifier(name)}`)
}

async function clearUnmanagedPasswords(client: SqlClient, id: string): Promise<void> {
  await rollBackPreparedRoleChanges(client, id)
  const managed = (await listUsers(client, id)).map((user) => user.name)
  const unmanaged = await client.query<{ name: string }>(
    id,
    superuser,
    `select rolname as name from pg_authid
     where rolcanlogin and rolpassword is not null and not rolname = any($1) and not rolname = any($2)`,
    [platformRoles, managed],
  )
  for (const { name } of unmanaged)
    await client.query(id, superuser, `ALTER ROLE ${quoteIdentifier(name)} PASSWORD NULL`)
}

/**
 * Ends the sessions and prepared transactions of the user while the change waits for its lock and once more after it.
 * Users may change their own password and settings, and an open transaction in which one did blocks our change. A
 * transaction that starts meanwhile queues behind ours.
 */
async function changeAndEndSessions(
  client: SqlClient,
  id: string,
  name: string,
  change: string,
  endPrepared = rollBackPreparedOf,
): Promise<void> {
  let isOver = false
  const changing = client.query(id, superuser, change).finally(() => {
    isOver = true
  })
  changing.catch(() => undefined) // awaited below
  const endActivity = async () => {
    await endSessions(client, id, name)
    await endPrepared(client, id, name)
    return isOver
  }
  await waitUntil(endActivity, changeTimeoutSeconds)
  await changing
  await endActivity()
}

async function endSessions(client: SqlClient, id: string, name: string): Promise<void> {
  await client.query(id, superuser, 'select pg_terminate_backend(pid, $2) from pg_stat_activity where usename = $1', [
    name,
    terminateTimeoutMs,
  ])
}

/** Gives what a user owns to the admins and revokes what was granted to the user by name, in every database. */
async function reassignOwned(client: SqlClient, id: string, name: string): Promise<void> {
  const user = quoteIdentifier(name)
  const change = `REASSIGN OWNED BY ${user} TO schema_admin; DROP OWNED BY ${user}`
  for (const database of await listDependentDatabases(client, id, name)) {
    let failure: unknown
    const attempt = async () => {
      try {
        await client.query(id, database, change)
        return true
      } catch (error) {
        failure = error
        return !(await listDependentDatabases(client, id, name)).includes(database)
      }
    }
    // Somebody may be dropping the database, with everything that the user owns in it.
    if (!(await waitUntil(attempt, dropTimeoutSeconds))) throw failure
  }
  // This covers shared objects, such as databases.
  await client.query(id, superuser, `REASSIGN OWNED BY ${user} TO schema_admin`)
}

/** The databases in which the user owns objects or has rights. */
async function listDependentDatabases(client: SqlClient, id: string, name: string): Promise<string[]> {
  const databases = await client.query<{ name: string }>(
    id,
    superuser,
    `select distinct datname as name from pg_shdepend join pg_database on pg_database.oid = dbid
     where refclassid = 'pg_authid'::regclass and refobjid = (select oid from pg_authid where rolname = $1)`,
    [name],
  )
  return databases.map((database) => database.name)
}
