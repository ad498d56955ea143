// The users of a cluster. Roles are of the cluster, what they own is in databases: the platform's own database is
// where statements about roles run, and only what a user owns leads into the databases of the tenant.
import { notFound } from '../../../model/errors.ts'
import { isReservedUser, type UserRole, userRoles } from '../../../model/postgres/user.ts'
import { waitUntil } from '../../host/process.ts'
import { superuser } from '../template.ts'
import type { Query } from './connection.ts'
import { reservedName } from './error.ts'
import { endPreparedOf, endPreparedRoleChanges } from './prepared.ts'
import { quoteIdentifier, quoteLiteral } from './quote.ts'
import { poolerUser } from './rights.ts'
import { isVerifierOf, scramVerifier } from './scram.ts'

/** What these functions need of a `PostgresDriver`. */
export interface Asker {
  query: Query
}

export interface User {
  name: string
  role: UserRole
}

const reservedUsers: readonly string[] = [superuser, poolerUser, ...userRoles]
// A little more than what a change waits for a lock.
const changeSeconds = 6
// The rights of a session that is being ended are gone only with it.
const endSessionMs = 5000

export async function listUsers(postgres: Asker, id: string): Promise<User[]> {
  return postgres.query<{ name: string; role: UserRole }>(
    id,
    superuser,
    `select member.rolname as name, granted.rolname as role
     from pg_roles member
     join pg_auth_members on pg_auth_members.member = member.oid
     join pg_roles granted on granted.oid = pg_auth_members.roleid
     where granted.rolname = any($1) and not member.rolname = any($2)
     order by member.rolname`,
    [userRoles, reservedUsers],
  )
}

export async function findUser(postgres: Asker, id: string, name: string): Promise<User | undefined> {
  return (await listUsers(postgres, id)).find((user) => user.name === name)
}

/** Refuses a name that is taken with `conflict`, and one that PostgreSQL does not allow with `invalid`. */
export async function createUser(
  postgres: Asker,
  id: string,
  { name, role, password }: User & { password: string },
): Promise<void> {
  if (isReservedUser(name)) throw reservedName(name)
  const user = quoteIdentifier(name)
  const secret = quoteLiteral(scramVerifier(password))
  await postgres.query(id, superuser, `CREATE ROLE ${user} LOGIN PASSWORD ${secret}; ${grantRole(name, role)}`)
}

// An admin acts as the group of admins, to whom then belongs whatever he makes.
function grantRole(name: string, role: UserRole): string {
  const user = quoteIdentifier(name)
  const acting = role === 'schema_admin' ? `SET role = 'schema_admin'` : 'RESET role'
  return `GRANT ${role} TO ${user}; ALTER ROLE ${user} ${acting};`
}

/** Ends the sessions of the user: what a session may do is partly settled when it begins. */
export async function setRole(postgres: Asker, id: string, { name, role }: User): Promise<void> {
  await getUser(postgres, id, name)
  const user = quoteIdentifier(name)
  const change = `REVOKE ${userRoles.join(', ')} FROM ${user}; ${grantRole(name, role)}`
  await changeAtWork(postgres, id, name, change)
  await reassignOwned(postgres, id, name)
}

async function getUser(postgres: Asker, id: string, name: string): Promise<User> {
  if (isReservedUser(name)) throw reservedName(name)
  const user = await findUser(postgres, id, name)
  if (user === undefined) throw notFound('User not found')
  return user
}

export async function setPassword(
  postgres: Asker,
  id: string,
  name: string,
  password: string,
  { killSessions = false }: { killSessions?: boolean } = {},
): Promise<void> {
  await getUser(postgres, id, name)
  const change = `ALTER ROLE ${quoteIdentifier(name)} PASSWORD ${quoteLiteral(scramVerifier(password))}`
  if (killSessions) return changeAtWork(postgres, id, name, change, endPreparedRoleChanges)
  await endPreparedRoleChanges(postgres, id)
  await postgres.query(id, superuser, change)
}

/** Whether it is the one that the cluster knows. */
export async function hasPassword(postgres: Asker, id: string, name: string, password: string): Promise<boolean> {
  const rows = await postgres.query<{ verifier: string | null }>(
    id,
    superuser,
    'select rolpassword as verifier from pg_authid where rolname = $1',
    [name],
  )
  return isVerifierOf(rows[0]?.verifier ?? '', password)
}

/** What the user owns goes to the admins. */
export async function dropUser(postgres: Asker, id: string, name: string): Promise<void> {
  await getUser(postgres, id, name)
  // First, so that no session begins while the rest goes on, also after a crash.
  await changeAtWork(postgres, id, name, `ALTER ROLE ${quoteIdentifier(name)} NOLOGIN`)
  await reassignOwned(postgres, id, name)
  await postgres.query(id, superuser, `DROP ROLE ${quoteIdentifier(name)}`)
}

/** Takes the password from every login role that is not one of the platform's users. */
export async function forgetForeignPasswords(postgres: Asker, id: string): Promise<void> {
  await endPreparedRoleChanges(postgres, id)
  const known = (await listUsers(postgres, id)).map((user) => user.name)
  const foreign = await postgres.query<{ name: string }>(
    id,
    superuser,
    `select rolname as name from pg_authid
     where rolcanlogin and rolpassword is not null and not rolname = any($1) and not rolname = any($2)`,
    [reservedUsers, known],
  )
  for (const { name } of foreign)
    await postgres.query(id, superuser, `ALTER ROLE ${quoteIdentifier(name)} PASSWORD NULL`)
}

/**
 * Ends what the user does, after the change and for as long as the change has to wait: everybody may change his own
 * password and settings, and a transaction in which he did keeps all others from changing him. Who begins another one
 * meanwhile waits behind us.
 */
async function changeAtWork(
  postgres: Asker,
  id: string,
  name: string,
  change: string,
  endPrepared = endPreparedOf,
): Promise<void> {
  let isOver = false
  const changing = postgres.query(id, superuser, change).finally(() => {
    isOver = true
  })
  changing.catch(() => undefined) // thrown below, once nothing else is under way
  const isChanged = async () => {
    await endSessions(postgres, id, name)
    await endPrepared(postgres, id, name)
    return isOver
  }
  await waitUntil(isChanged, changeSeconds)
  await changing
  await isChanged()
}

async function endSessions(postgres: Asker, id: string, name: string): Promise<void> {
  await postgres.query(id, superuser, 'select pg_terminate_backend(pid, $2) from pg_stat_activity where usename = $1', [
    name,
    endSessionMs,
  ])
}

/** Gives what a user owns to the admins and takes back what he was granted by name, in every database. */
async function reassignOwned(postgres: Asker, id: string, name: string): Promise<void> {
  const databases = await postgres.query<{ name: string }>(
    id,
    superuser,
    `select distinct datname as name from pg_shdepend join pg_database on pg_database.oid = dbid
     where refclassid = 'pg_authid'::regclass and refobjid = (select oid from pg_authid where rolname = $1)`,
    [name],
  )
  const user = quoteIdentifier(name)
  for (const database of databases) {
    await postgres.query(id, database.name, `REASSIGN OWNED BY ${user} TO schema_admin; DROP OWNED BY ${user}`)
  }
  // What is of the cluster and not of a database, such as a database itself.
  await postgres.query(id, superuser, `REASSIGN OWNED BY ${user} TO schema_admin`)
}
