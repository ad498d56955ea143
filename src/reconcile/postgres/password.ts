import type { Cluster } from '../../model/postgres/cluster.ts'
import { newPassword, userTurn } from '../../model/postgres/user.ts'
import { seal, unseal } from '../../model/seal.ts'
import {
  deleteStoredUser,
  dropNextPassword,
  insertUser,
  isBeingDeleted,
  listInterruptedDeletions,
  listNextPasswords,
  listStoredUsers,
  settleNextPassword,
} from '../../store/postgres/user.ts'
import type { World } from '../step.ts'

export async function setPasswords(cluster: Cluster, { db, postgres, encryptionKey }: World): Promise<void> {
  for (const user of await listStoredUsers(db, cluster.id)) {
    await postgres.users.setPassword(cluster.id, user.username, unseal(encryptionKey, user.password).toString())
  }
}

/**
 * Settles password rotations that were interrupted before or after the cluster had the new password. Whichever password
 * the cluster accepts is kept; the rotation is not completed, because its caller has seen it fail.
 */
export async function settlePasswords(cluster: Cluster, { db, postgres, encryptionKey }: World): Promise<void> {
  for (const next of await listNextPasswords(db, cluster.id)) {
    const password = unseal(encryptionKey, next.password).toString()
    const isInEffect = await postgres.users.hasPassword(cluster.id, next.username, password)
    await (isInEffect ? settleNextPassword : dropNextPassword)(db, cluster.id, next)
  }
}

/** Longer than taking a free turn lasts. */
const turnWaitMs = 1_000

/** Finishes deletions of users that were interrupted. */
export async function finishUserDeletions(cluster: Cluster, world: World): Promise<void> {
  for (const username of await listInterruptedDeletions(world.db, cluster.id)) {
    // While a request has the turn, it finishes the deletion itself.
    await world.turns.take(userTurn(cluster.id, username), turnWaitMs, () =>
      finishUserDeletion(cluster, username, world),
    )
  }
}

async function finishUserDeletion(cluster: Cluster, username: string, world: World): Promise<void> {
  const { db, postgres, pooler, hosting } = world
  if (!(await isBeingDeleted(db, cluster.id, username))) return
  await postgres.users.drop(cluster.id, username)
  const address = { listen: hosting.listen, port: cluster.poolerPort! }
  await pooler.endSessions(cluster.id, address, { user: username })
  await deleteStoredUser(db, cluster.id, username)
}

/** Gives a restored cluster new passwords, so that those of its source do not work there. */
export async function renewPasswords(cluster: Cluster, { db, postgres, encryptionKey }: World): Promise<void> {
  await postgres.users.clearUnmanagedPasswords(cluster.id)
  for (const { name, role } of await postgres.users.list(cluster.id)) {
    const password = newPassword()
    await deleteStoredUser(db, cluster.id, name)
    await insertUser(db, cluster.id, { username: name, role, password: seal(encryptionKey, Buffer.from(password)) })
    await postgres.users.setPassword(cluster.id, name, password)
  }
}
