import type { ClusterUser, UserRole } from '../../model/postgres/user.ts'
import type { Query } from '../db.ts'

export interface StoredUser extends ClusterUser {
  /** Encrypted with the platform's key. */
  password: Buffer
}

/** Returns false when the cluster already has a user of that name. */
export async function insertUser(db: Query, clusterId: string, user: StoredUser): Promise<boolean> {
  const { rowCount } = await db.query(
    `insert into cluster_user (cluster_id, username, role, password) values ($1, $2, $3, $4)
     on conflict (cluster_id, username) do nothing`,
    [clusterId, user.username, user.role, user.password],
  )
  return rowCount === 1
}

export async function listStoredUsers(db: Query, clusterId: string): Promise<StoredUser[]> {
  const { rows } = await db.query<StoredUser>(
    `select username, role, password from cluster_user where cluster_id = $1 and deleting_at is null order by username`,
    [clusterId],
  )
  return rows
}

export async function findStoredUser(db: Query, clusterId: string, username: string): Promise<StoredUser | undefined> {
  const { rows } = await db.query<StoredUser>(
    `select username, role, password from cluster_user
     where cluster_id = $1 and username = $2 and deleting_at is null`,
    [clusterId, username],
  )
  return rows[0]
}

export async function setStoredRole(db: Query, clusterId: string, username: string, role: UserRole): Promise<void> {
  await db.query('update cluster_user set role = $3 where cluster_id = $1 and username = $2', [
    clusterId,
    username,
    role,
  ])
}

/** Makes the password the current one of a user that was just created with it. */
export async function setStoredPassword(db: Query, clusterId: string, user: StoredUser): Promise<void> {
  await db.query(
    `update cluster_user set role = $3, password = $4, next_password = null, next_password_at = null
     where cluster_id = $1 and username = $2 and deleting_at is null`,
    [clusterId, user.username, user.role, user.password],
  )
}

/** Stores the new password beside the current one until the cluster has accepted it. */
export async function putNextPassword(db: Query, clusterId: string, user: StoredUser): Promise<void> {
  await db.query(
    `insert into cluster_user (cluster_id, username, role, password, next_password, next_password_at)
     values ($1, $2, $3, $4, $4, now())
     on conflict (cluster_id, username) do update set next_password = $4, next_password_at = now()`,
    [clusterId, user.username, user.role, user.password],
  )
}

type Password = Pick<StoredUser, 'username' | 'password'>

/** Makes the next password the current one, because the cluster has accepted it. */
export async function settleNextPassword(
  db: Query,
  clusterId: string,
  { username, password }: Password,
): Promise<void> {
  await db.query(
    `update cluster_user set password = next_password, next_password = null, next_password_at = null
     where cluster_id = $1 and username = $2 and next_password = $3`,
    [clusterId, username, password],
  )
}

/** Drops the next password, because the cluster has not accepted it. A user without another password is deleted. */
export async function dropNextPassword(db: Query, clusterId: string, { username, password }: Password): Promise<void> {
  const values = [clusterId, username, password]
  const chosen = 'cluster_id = $1 and username = $2 and next_password = $3'
  await db.query(`delete from cluster_user where ${chosen} and password = $3`, values)
  await db.query(`update cluster_user set next_password = null, next_password_at = null where ${chosen}`, values)
}

// Above the 10 s after which a change of a user times out.
const changeTimeoutSeconds = 15

/** Interrupted password changes. */
export async function listNextPasswords(db: Query, clusterId: string): Promise<Password[]> {
  const { rows } = await db.query<Password>(
    `select username, next_password as password from cluster_user
     where cluster_id = $1 and next_password_at < now() - make_interval(secs => $2) and deleting_at is null
     order by username`,
    [clusterId, changeTimeoutSeconds],
  )
  return rows
}

/** Called before the user is dropped. From now on its password is unknown, and the deletion will be finished. */
export async function putDeletion(db: Query, clusterId: string, { username, role }: ClusterUser): Promise<void> {
  await db.query(
    `insert into cluster_user (cluster_id, username, role, password, deleting_at) values ($1, $2, $3, '', now())
     on conflict (cluster_id, username) do update
       set password = '', next_password = null, next_password_at = null, deleting_at = now()`,
    [clusterId, username, role],
  )
}

export async function isBeingDeleted(db: Query, clusterId: string, username: string): Promise<boolean> {
  const { rowCount } = await db.query(
    'select from cluster_user where cluster_id = $1 and username = $2 and deleting_at is not null',
    [clusterId, username],
  )
  return rowCount === 1
}

/** The users that are being deleted. */
export async function listDeletions(db: Query, clusterId: string, minAgeSeconds = 0): Promise<string[]> {
  const { rows } = await db.query<{ username: string }>(
    `select username from cluster_user
     where cluster_id = $1 and deleting_at <= now() - make_interval(secs => $2) order by username`,
    [clusterId, minAgeSeconds],
  )
  return rows.map(({ username }) => username)
}

/** Deletions that were interrupted. */
export function listInterruptedDeletions(db: Query, clusterId: string): Promise<string[]> {
  return listDeletions(db, clusterId, changeTimeoutSeconds)
}

export async function deleteStoredUser(db: Query, clusterId: string, username: string): Promise<void> {
  await db.query('delete from cluster_user where cluster_id = $1 and username = $2', [clusterId, username])
}
