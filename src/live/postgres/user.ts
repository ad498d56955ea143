import { badRequest, conflict, notFound, unavailable } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { checkName, findNameProblem } from '../../model/postgres/name.ts'
import {
  type ClusterUser,
  type CreateUser,
  isReservedUser,
  newPassword,
  type UserRole,
  userTurn,
} from '../../model/postgres/user.ts'
import { seal, unseal } from '../../model/seal.ts'
import {
  deleteStoredUser,
  findStoredUser,
  isBeingDeleted,
  listDeletions,
  putDeletion,
  putNextPassword,
  setStoredPassword,
  setStoredRole,
  settleNextPassword,
} from '../../store/postgres/user.ts'
import type { LiveContext } from '../context.ts'
import { askCluster, getReadyCluster } from './cluster.ts'
import { endPooledSessions } from './pooler.ts'

/** Longer than the deadline of the change that has the turn. */
const maxWaitMs = 15_000

export interface UserCredentials {
  username: string
  password: string
}

export async function listClusterUsers(ctx: LiveContext, clusterId: string): Promise<ClusterUser[]> {
  const cluster = await getReadyCluster(ctx, clusterId, 'read')
  const users = await askCluster(ctx, cluster, ctx.postgres.users.list(cluster.id))
  const deleting = await listDeletions(ctx.db, cluster.id)
  return users.filter(({ name }) => !deleting.includes(name)).map(({ name, role }) => ({ username: name, role }))
}

/**
 * Stores the password first, so that the user never exists without a known one. It is always a new one: what is stored
 * already may belong to a user of this name that was dropped in SQL.
 */
export async function createClusterUser(ctx: LiveContext, clusterId: string, input: CreateUser): Promise<ClusterUser> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotReserved(input.username)
  checkName(input.username)
  const { username, role } = input
  return serialize(ctx, cluster, username, async () => {
    await finishDeletion(ctx, cluster, username)
    if (await askCluster(ctx, cluster, ctx.postgres.users.find(cluster.id, username))) throw userExists(username)
    const password = newPassword()
    const user = { username, role, password: seal(ctx.encryptionKey, Buffer.from(password)) }
    await putNextPassword(ctx.db, cluster.id, user)
    await askCluster(ctx, cluster, ctx.postgres.users.create(cluster.id, { name: username, role, password }))
    await setStoredPassword(ctx.db, cluster.id, user)
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
  checkNotReserved(username)
  await serialize(ctx, cluster, username, async () => {
    await requireKept(ctx, cluster, username)
    const user = await askCluster(ctx, cluster, ctx.postgres.users.find(cluster.id, username))
    // The stored role is written last, so it differs after a change that was interrupted.
    const stored = await findStoredUser(ctx.db, cluster.id, username)
    if (user?.role === role && stored?.role === role) return
    await askCluster(ctx, cluster, ctx.postgres.users.setRole(cluster.id, { name: username, role }))
    await setStoredRole(ctx.db, cluster.id, username, role)
  })
}

export async function deleteClusterUser(ctx: LiveContext, clusterId: string, username: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotReserved(username)
  await serialize(ctx, cluster, username, async () => {
    if (await finishDeletion(ctx, cluster, username)) return
    const user = await askCluster(ctx, cluster, ctx.postgres.users.find(cluster.id, username))
    if (!user) {
      await deleteStoredUser(ctx.db, cluster.id, username)
      throw userNotFound()
    }
    await putDeletion(ctx.db, cluster.id, { username, role: user.role })
    await finishDeletion(ctx, cluster, username)
  })
}

/** Returns false unless a deletion of the user has begun. If this fails, the background loop repeats it. */
async function finishDeletion(ctx: LiveContext, cluster: Cluster, username: string): Promise<boolean> {
  if (!(await isBeingDeleted(ctx.db, cluster.id, username))) return false
  await askCluster(ctx, cluster, ctx.postgres.users.drop(cluster.id, username))
  await endPooledSessions(ctx, cluster, { user: username })
  await deleteStoredUser(ctx.db, cluster.id, username)
  return true
}

async function requireKept(ctx: LiveContext, cluster: Cluster, username: string): Promise<void> {
  if (await isBeingDeleted(ctx.db, cluster.id, username)) throw userNotFound()
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
  // A password grants write access, so a read-only token must not see it.
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotReserved(username)
  const user = await findStoredUser(ctx.db, cluster.id, username)
  return user && { username, password: unseal(ctx.encryptionKey, user.password).toString() }
}

/** Returns the new password only after the cluster has accepted it. The background loop settles an interrupted rotation. */
export async function rotatePassword(
  ctx: LiveContext,
  clusterId: string,
  username: string,
  killSessions: boolean,
): Promise<UserCredentials> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotReserved(username)
  return serialize(ctx, cluster, username, async () => {
    await requireKept(ctx, cluster, username)
    const user = await askCluster(ctx, cluster, ctx.postgres.users.find(cluster.id, username))
    if (!user) throw userNotFound()
    // Done before the change as well: if the pooler fails after it, the caller would not get the new password.
    if (killSessions) await endPooledSessions(ctx, cluster, { user: username })
    const password = newPassword()
    const next = { username, role: user.role, password: seal(ctx.encryptionKey, Buffer.from(password)) }
    await putNextPassword(ctx.db, cluster.id, next)
    await askCluster(ctx, cluster, ctx.postgres.users.setPassword(cluster.id, username, password, { killSessions }))
    await settleNextPassword(ctx.db, cluster.id, next)
    if (killSessions) await endPooledSessions(ctx, cluster, { user: username })
    return { username, password }
  })
}

/**
 * Runs changes of the same user one after another. With two concurrent rotations, the stored password might not be the one
 * in effect; and PostgreSQL rejects concurrent changes of a role.
 */
async function serialize<T>(
  ctx: LiveContext,
  cluster: Cluster,
  username: string,
  change: () => Promise<T>,
): Promise<T> {
  if (findNameProblem(username)) throw userNotFound()
  const turn = await ctx.turns.take(userTurn(cluster.id, username), maxWaitMs, change)
  if (!turn) throw unavailable(`another change of user ${username} takes long; try again in a moment`)
  return turn.value
}

function checkNotReserved(username: string): void {
  if (isReservedUser(username)) throw badRequest(`user ${username} is reserved`)
}

function userExists(username: string) {
  return conflict(`user ${username} already exists`)
}

function userNotFound() {
  return notFound('User not found')
}
