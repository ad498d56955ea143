// The two endpoints of a cluster: the server itself and its pooler.
import type { ProbeTarget } from '../../drivers/postgres/sql/driver.ts'
import { waitUntil } from '../../model/poll.ts'
import { type Cluster, defaultDatabase, defaultUser } from '../../model/postgres/cluster.ts'
import { poolerSpec } from '../../model/postgres/spec.ts'
import { unseal } from '../../model/seal.ts'
import { findStoredUser } from '../../store/postgres/user.ts'
import type { World } from '../step.ts'

/** A server starts within some hundredths of a second, so a short wait saves a turn of the loop. */
const timeoutSeconds = 3

export async function startPooler(cluster: Cluster, { pooler, hosting }: World): Promise<void> {
  await pooler.ensurePooler(cluster.id, poolerSpec(cluster, hosting))
}

/** Returns why the server is not ready; undefined if it is. */
export async function waitForServer(cluster: Cluster, { postgres }: World): Promise<string | undefined> {
  const server = await postgres.waitUntilReady(cluster.id, timeoutSeconds)
  if (server.is === 'ready') return undefined
  const last = 'log' in server ? server.log.at(-1) : undefined
  return last ? `PostgreSQL is ${server.is}: ${last}` : `PostgreSQL is ${server.is}`
}

/** Checks what state `ready` promises: clients get an answer through both endpoints. */
export async function probeEndpoints(cluster: Cluster, world: World): Promise<void> {
  const targets = await listEndpoints(cluster, world)
  await Promise.all(targets.map(world.postgres.probe))
}

/** Returns the error of the server, or else that of the pooler; undefined once both answer. */
export async function waitForEndpoints(cluster: Cluster, world: World): Promise<Error | undefined> {
  const targets = await listEndpoints(cluster, world)
  const problems = await Promise.all(targets.map((target) => waitForAnswer(target, world)))
  return problems.find((problem) => problem !== undefined)
}

/** The server first, then the pooler. Empty if there is no user or database to connect with. */
async function listEndpoints(cluster: Cluster, world: World): Promise<ProbeTarget[]> {
  const user = await findStoredUser(world.db, cluster.id, defaultUser)
  if (!user) return [] // the owner has deleted the default user, and other passwords may be out of date
  const databases = await world.postgres.databases.listOpen(cluster.id)
  // The tenant may have dropped or closed the default database, and all others as well.
  const database = databases.find((name) => name === defaultDatabase) ?? databases[0]
  if (database === undefined) return []
  const password = unseal(world.encryptionKey, user.password).toString()
  const target = { host: world.hosting.localHost, user: defaultUser, password, database }
  return [cluster.directPort!, cluster.poolerPort!].map((port) => ({ ...target, port }))
}

async function waitForAnswer(target: ProbeTarget, { postgres }: World): Promise<Error | undefined> {
  let problem: Error | undefined
  const answers = async () => {
    problem = await postgres.probe(target).then(
      () => undefined,
      (err: Error) => err,
    )
    return problem === undefined
  }
  await waitUntil(answers, timeoutSeconds)
  return problem
}
