import type { ClusterUser, UserRole } from '../model/user.ts'
import type { Query } from './db.ts'

export interface StoredUser extends ClusterUser {
  /** Encrypted with the platform's key. */
  password: Buffer
}

/** False when the cluster has a user of that name already. */
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
    'select username, role, password from cluster_user where cluster_id = $1 order by username',
    [clusterId],
  )
  return rows
}

export async function findStoredUser(db: Query, clusterId: string, username: string): Promise<StoredUser | undefined> {
  const { rows } = await db.query<StoredUser>(
    'select username, role, password from cluster_user where cluster_id = $1 and username = $2',
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

export async function setStoredPassword(
  db: Query,
  clusterId: string,
  username: string,
  password: Buffer,
): Promise<void> {
  await db.query('update cluster_user set password = $3 where cluster_id = $1 and username = $2', [
    clusterId,
    username,
    password,
  ])
}

export async function deleteStoredUser(db: Query, clusterId: string, username: string): Promise<void> {
  await db.query('delete from cluster_user where cluster_id = $1 and username = $2', [clusterId, username])
}
