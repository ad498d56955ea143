import { quoteIdentifier } from '../../drivers/postgres/sql/quote.ts'
import { createUser, dropUser, findUser, listUsers, setPassword, setRole } from '../../drivers/postgres/sql/role.ts'
import { badRequest, conflict, notFound } from '../../model/errors.ts'
import { keyedQueue } from '../../model/keyed-queue.ts'
import {
  type ClusterUser,
  type CreateUser,
  isReservedUser,
  newPassword,
  type UserRole,
} from '../../model/postgres/user.ts'
import { seal, unseal } from '../../model/seal.ts'
import {
  deleteStoredUser,
  findStoredUser,
  insertUser,
  putNextPassword,
  setStoredRole,
  settleNextPassword,
} from '../../store/postgres/user.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { getReadyCluster } from './cluster.ts'
import { endPooled } from './pooler.ts'

export interface UserCredentials {
  username: string
  password: string
}

export async function listClusterUsers(ctx: LiveContext, clusterId: string): Promise<ClusterUser[]> {
  const cluster = await getReadyCluster(ctx, clusterId, 'read')
  const users = await withDeadline(listUsers(ctx.postgres, cluster.id), 'the cluster')
  return users.map(({ name, role }) => ({ username: name, role }))
}

/** The password is kept first: a crash in between leaves a user that can be created again, never one without a way in. */
export async function createClusterUser(ctx: LiveContext, clusterId: string, input: CreateUser): Promise<ClusterUser> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(input.username)
  const { username, role } = input
  return inTurn(cluster.id, username, async () => {
    if (await withDeadline(findUser(ctx.postgres, cluster.id, username), 'the cluster')) throw taken(username)
    quoteIdentifier(username) // refuses what can be no name before anything is kept
    const fresh = seal(ctx.encryptionKey, Buffer.from(newPassword()))
    await insertUser(ctx.db, cluster.id, { username, role, password: fresh })
    // Kept by an attempt that came to nothing or by one of another process: whoever makes the user, it gets this one.
    const { password } = await getCredentials(ctx, cluster.id, username)
    await withDeadline(createUser(ctx.postgres, cluster.id, { name: username, role, password }), 'the cluster')
    await setStoredRole(ctx.db, cluster.id, username, role)
    return { username, role }
  })
}

export async function changeUserRole(
  ctx: LiveContext,
  clusterId: string,
  username: string,
  role: UserRole,
): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(username)
  await inTurn(cluster.id, username, async () => {
    const user = await withDeadline(findUser(ctx.postgres, cluster.id, username), 'the cluster')
    // Kept once all of a change is done: after one that was stopped on the way it is another one.
    const kept = await findStoredUser(ctx.db, cluster.id, username)
    if (user?.role === role && kept?.role === role) return
    await withDeadline(setRole(ctx.postgres, cluster.id, { name: username, role }), 'the cluster')
    await setStoredRole(ctx.db, cluster.id, username, role)
  })
}

export async function deleteClusterUser(ctx: LiveContext, clusterId: string, username: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(username)
  await inTurn(cluster.id, username, async () => {
    await withDeadline(dropUser(ctx.postgres, cluster.id, username), 'the cluster')
    await deleteStoredUser(ctx.db, cluster.id, username)
    await endPooled(ctx, cluster, { user: username })
  })
}

export async function getCredentials(ctx: LiveContext, clusterId: string, username: string): Promise<UserCredentials> {
  const found = await findCredentials(ctx, clusterId, username)
  if (!found) throw userNotFound()
  return found
}

export async function findCredentials(
  ctx: LiveContext,
  clusterId: string,
  username: string,
): Promise<UserCredentials | undefined> {
  // A password lets its holder write, so a token that may only read does not get it.
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(username)
  const user = await findStoredUser(ctx.db, cluster.id, username)
  return user && { username, password: unseal(ctx.encryptionKey, user.password).toString() }
}

/** Shown only after the cluster took it: until then the old one is the one that works. What is stopped in between ends by itself. */
export async function rotatePassword(
  ctx: LiveContext,
  clusterId: string,
  username: string,
  killSessions: boolean,
): Promise<UserCredentials> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(username)
  return inTurn(cluster.id, username, async () => {
    const user = await withDeadline(findUser(ctx.postgres, cluster.id, username), 'the cluster')
    if (!user) throw userNotFound()
    // Also before anything changes: where the pooler does not answer, nobody would be told the new password.
    if (killSessions) await endPooled(ctx, cluster, { user: username })
    const password = newPassword()
    const next = { username, role: user.role, password: seal(ctx.encryptionKey, Buffer.from(password)) }
    await putNextPassword(ctx.db, cluster.id, next)
    await withDeadline(setPassword(ctx.postgres, cluster.id, username, password, { killSessions }), 'the cluster')
    await settleNextPassword(ctx.db, cluster.id, next)
    if (killSessions) await endPooled(ctx, cluster, { user: username })
    return { username, password }
  })
}

const changes = keyedQueue()

/**
 * One change of a user after the other: of two new passwords at once the one that is kept might not be the one that
 * works, and PostgreSQL refuses to change a role twice at the same time.
 */
function inTurn<T>(clusterId: string, username: string, change: () => Promise<T>): Promise<T> {
  return changes(`${clusterId}/${username}`, change)
}

function refuseReserved(username: string): void {
  if (isReservedUser(username)) throw badRequest(`user ${username} is reserved`)
}

function taken(username: string) {
  return conflict(`user ${username} already exists`)
}

function userNotFound() {
  return notFound('User not found')
}
