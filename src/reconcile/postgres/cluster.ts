import { randomInt } from 'node:crypto'
import { waitUntil } from '../../drivers/host/process.ts'
import { localHost } from '../../drivers/network/port.ts'
import { clusterSpec, dataOptions, poolerSpec } from '../../drivers/postgres/spec.ts'
import type { ProbeTarget } from '../../drivers/postgres/sql/connection.ts'
import { listOpenDatabases } from '../../drivers/postgres/sql/database.ts'
import { hasPassword, setPassword } from '../../drivers/postgres/sql/role.ts'
import { describeError } from '../../model/errors.ts'
import { type Cluster, type clusterStates, defaultDatabase, defaultUser } from '../../model/postgres/cluster.ts'
import { unseal } from '../../model/seal.ts'
import { endArchives } from '../../store/postgres/archive.ts'
import { releaseCluster, reservePorts, setPlacement, usedPorts } from '../../store/postgres/cluster.ts'
import { findRestore, releasePins } from '../../store/postgres/restore.ts'
import { forgetKept, mustKeepDeleted } from '../../store/postgres/retention.ts'
import {
  dropNextPassword,
  findStoredUser,
  listNextPasswords,
  listStoredUsers,
  settleNextPassword,
} from '../../store/postgres/user.ts'
import { advance, type Steps, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { keepDescribed } from './describe.ts'
import { keepHealthy } from './health.ts'
import { leaveTakenPorts, noFreePorts, pickPorts } from './port.ts'
import { initializeRestored } from './restore.ts'

/** Below this much free disk a new cluster would not live long enough to be useful. */
const leastFreeBytes = 256 * 1024 * 1024

/** A day: nothing starts by itself what has failed. */
const stoppedLookSeconds = 86_400

export const clusterSteps: Steps<typeof clusterStates, Cluster> = {
  async creating(cluster, { db, hosting }) {
    const problem = await findProblem(hosting)
    if (problem) return advance('failed', problem)
    // What fails twice in a row does not pass by itself.
    const find = () => hosting.findToolchain(cluster.pgMajor)
    const toolchain = await find()
      .catch(find)
      .catch((err: Error) => err)
    if (toolchain instanceof Error) return advance('failed', describeError(toolchain))
    if (cluster.directPort !== null) return advance('placed')
    const ports = await pickPorts(hosting, await usedPorts(db))
    if (!ports) return advance('failed', noFreePorts(hosting))
    const { uids } = hosting
    const uid = uids ? randomInt(uids.first, uids.last + 1) : null
    return advance('placed', '', async (tx) => {
      await setPlacement(tx, cluster.id, uid, toolchain)
      await reservePorts(tx, cluster.id, ports[0], ports[1])
    })
  },

  async initializing(cluster, world) {
    const { postgres } = world
    const moved = await leaveTakenPorts(cluster, world)
    if (moved) return moved
    const restore = await findRestore(world.db, cluster.id)
    if (restore) return initializeRestored(cluster, restore, world)
    const failed = await noSpaceMeansFailed(postgres.ensureData(cluster.id, dataOptions(cluster)))
    if (failed) return advance('failed', failed)
    await postgres.ensureRunning(cluster.id, clusterSpec(cluster, world.hosting))
    const problem = await waitForServer(cluster, world)
    if (problem) return wait(1, problem)
    await setPasswords(cluster, world)
    await ensureArchive(cluster, world, null)
    await startPooler(cluster, world)
    const unreachable = await waitForEndpoints(cluster, world)
    return unreachable ? wait(1, describeError(unreachable)) : advance('ready')
  },

  ready: keepHealthy,

  /** What failed is left for its owner to look at, but nothing of it runs any more. */
  async failed(cluster, { postgres, pooler, receiver, restores }) {
    await restores.remove(cluster.id)
    await pooler.removePooler(cluster.id)
    await postgres.stop(cluster.id)
    await receiver.removeReceiver(cluster.id)
    return wait(stoppedLookSeconds, 'stopped')
  },

  async deleting(cluster, world) {
    const { postgres, pooler, receiver, backups, restores, hosting } = world
    await restores.remove(cluster.id)
    await backups.removeScrub(cluster.id)
    await pooler.removePooler(cluster.id)
    // A clean shutdown waits until the archive has everything, so that an undelete has it as well.
    if ((await postgres.inspect(cluster.id)).is === 'ready') await postgres.stop(cluster.id)
    await receiver.removeReceiver(cluster.id)
    await postgres.remove(cluster.id)
    await hosting.removeLimits(cluster.id)
    return advance('gone', '', async (tx) => {
      await releaseCluster(tx, cluster.id)
      await endArchives(tx, cluster.id)
      await releasePins(tx, cluster.id)
    })
  },

  async deleted(cluster, world) {
    const { db, repository, keep } = world
    const mustKeep = !cluster.scratch && (await mustKeepDeleted(db, cluster.id, keep.deletedDays))
    if (mustKeep) {
      await keepDescribed(cluster, world)
      return wait(3600, 'keeping its backups')
    }
    await repository.removeCluster(cluster.id)
    return advance('purged', '', (tx) => forgetKept(tx, cluster.id))
  },
}

async function findProblem(hosting: World['hosting']): Promise<string | undefined> {
  const free = await hosting.freeBytes()
  if (free >= leastFreeBytes) return undefined
  return `not enough disk space: ${Math.floor(free / 1024 / 1024)} MB are free, ${leastFreeBytes / 1024 / 1024} MB are needed`
}

/** Knows every database that is there now; one that comes later is added by whoever makes it. */
export async function startPooler(cluster: Cluster, { pooler, postgres, hosting }: World): Promise<void> {
  const databases = await listOpenDatabases(postgres, cluster.id)
  await pooler.ensurePooler(cluster.id, poolerSpec(cluster, hosting, databases))
}

async function setPasswords(cluster: Cluster, { db, postgres, encryptionKey }: World): Promise<void> {
  for (const user of await listStoredUsers(db, cluster.id)) {
    await setPassword(postgres, cluster.id, user.username, unseal(encryptionKey, user.password).toString())
  }
}

/**
 * Who made a new password may have been stopped before or after the cluster had it. The one that it has is shown, and no
 * other is given to it: a request that failed is not done later.
 */
export async function finishPasswords(cluster: Cluster, { db, postgres, encryptionKey }: World): Promise<void> {
  for (const next of await listNextPasswords(db, cluster.id)) {
    const password = unseal(encryptionKey, next.password).toString()
    const isTaken = await hasPassword(postgres, cluster.id, next.username, password)
    await (isTaken ? settleNextPassword : dropNextPassword)(db, cluster.id, next)
  }
}

/** What `ready` promises: a client gets an answer through both endpoints. */
export async function probeEndpoints(cluster: Cluster, world: World): Promise<void> {
  const targets = await listEndpoints(cluster, world)
  await Promise.all(targets.map(world.postgres.probe))
}

/** The server, then the pooler. */
async function listEndpoints(cluster: Cluster, world: World): Promise<ProbeTarget[]> {
  const user = await findStoredUser(world.db, cluster.id, defaultUser)
  if (!user) return [] // its owner deleted the default user, so nobody's password is known for sure
  const databases = await listOpenDatabases(world.postgres, cluster.id)
  // The tenant may have dropped or closed the one that every cluster starts with, and all others as well.
  const database = databases.find((name) => name === defaultDatabase) ?? databases[0]
  if (database === undefined) return []
  const password = unseal(world.encryptionKey, user.password).toString()
  const target = { host: localHost(world.hosting.listen), user: defaultUser, password, database }
  return [cluster.directPort!, cluster.poolerPort!].map((port) => ({ ...target, port }))
}

/** A server starts in a few hundredths of a second, so it is worth a moment; what takes longer is looked at next turn. */
const patienceSeconds = 3

async function waitForServer(cluster: Cluster, { postgres }: World): Promise<string | undefined> {
  const server = await postgres.waitUntilReady(cluster.id, patienceSeconds)
  if (server.is === 'ready') return undefined
  const last = 'log' in server ? server.log.at(-1) : undefined
  return last ? `PostgreSQL is ${server.is}: ${last}` : `PostgreSQL is ${server.is}`
}

/** What keeps clients from the server, or else from the pooler. */
export async function waitForEndpoints(cluster: Cluster, world: World): Promise<Error | undefined> {
  const targets = await listEndpoints(cluster, world)
  const problems = await Promise.all(targets.map((target) => waitForAnswer(target, world)))
  return problems.find((problem) => problem !== undefined)
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
  await waitUntil(answers, patienceSeconds)
  return problem
}

async function noSpaceMeansFailed(work: Promise<void>): Promise<string | undefined> {
  try {
    await work
    return undefined
  } catch (err) {
    if (/ENOSPC|No space left/i.test(describeError(err))) return 'the disk is full'
    throw err
  }
}
