import { randomInt } from 'node:crypto'
import { isDiskFull } from '../../model/disk-full.ts'
import { describeError } from '../../model/errors.ts'
import { type Cluster, type clusterStates, defaultDatabase } from '../../model/postgres/cluster.ts'
import { clusterSpec, dataSpec, needsOf } from '../../model/postgres/spec.ts'
import { endArchives } from '../../store/postgres/archive.ts'
import { releaseCluster, reservePorts, setPlacement, usedPorts } from '../../store/postgres/cluster.ts'
import { hasActiveImport } from '../../store/postgres/import.ts'
import { findRestore, releasePins, releaseUnneeded } from '../../store/postgres/restore.ts'
import { forgetBackups } from '../../store/postgres/retention.ts'
import { findUpgrade } from '../../store/postgres/upgrade.ts'
import { advance, type Steps, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { keepDescribed } from './describe.ts'
import { startPooler, waitForEndpoints, waitForServer } from './endpoint.ts'
import { keepHealthy } from './health.ts'
import { setPasswords } from './password.ts'
import { leaveTakenPorts, noFreePorts, pickPorts } from './port.ts'
import { recordFinalEnd } from './record.ts'
import { initializeRestored } from './restore.ts'
import { initializeUpgraded } from './upgrade-major.ts'

/** With less free disk space, a new cluster would fail soon. */
const minFreeBytes = 256 * 1024 * 1024

/** A day, because a failed cluster does not change by itself. */
const failedCheckSeconds = 86_400

export const clusterSteps: Steps<typeof clusterStates, Cluster> = {
  async creating(cluster, { db, hosting }) {
    const problem = await findDiskProblem(hosting)
    if (problem) return advance('failed', problem)
    // A failure that happens twice in a row is not temporary.
    const find = () => hosting.findToolchain(cluster.pgMajor, needsOf(cluster))
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
    const restore = await findRestore(world.db, cluster.id)
    const moved = restore?.purpose === 'recover' ? undefined : await leaveTakenPorts(cluster, world)
    if (moved) return moved
    await world.hosting.ensureDisk(cluster.id)
    // A restore stages WAL beside the data, so that its limit comes when it is ready.
    const upgrade = restore && restore.purpose !== 'recover' ? await findUpgrade(world.db, cluster.id) : undefined
    if (restore && upgrade) return initializeUpgraded(cluster, restore, upgrade, world)
    if (restore) return initializeRestored(cluster, restore, world)
    await world.hosting.ensureDiskLimit(cluster.id, cluster.diskSizeGb, false)
    const failed = await findDiskFull(postgres.ensureData(cluster.id, dataSpec(cluster)))
    if (failed) return advance('failed', failed)
    await postgres.ensureRunning(cluster.id, clusterSpec(cluster, world.hosting))
    const problem = await waitForServer(cluster, world)
    if (problem) return wait(1, problem)
    // Before any user has a password: no tenant can have created functions that its script would call.
    if (cluster.postgisEnabled) await postgres.extensions.enableInNew(cluster.id, defaultDatabase, 'postgis')
    await enableExtensions(cluster, world)
    await setPasswords(cluster, world)
    await ensureArchive(cluster, world, null)
    await startPooler(cluster, world)
    const unreachable = await waitForEndpoints(cluster, world)
    return unreachable ? wait(1, describeError(unreachable)) : advance('ready')
  },

  ready: keepHealthy,

  /** Stops all processes, but keeps the files for inspection. */
  async failed(cluster, { postgres, pooler, receiver, restores, upgrades }) {
    await restores.remove(cluster.id)
    await upgrades.stopUpgrade(cluster.id)
    await pooler.removePooler(cluster.id)
    await postgres.stop(cluster.id)
    await receiver.removeReceiver(cluster.id)
    return wait(failedCheckSeconds, 'stopped')
  },

  async deleting(cluster, world) {
    const { postgres, pooler, receiver, backups, restores, upgrades, hosting } = world
    if (await hasActiveImport(world.db, cluster.id)) return wait(0.5, 'waiting for the import to end')
    await restores.remove(cluster.id)
    await upgrades.stopUpgrade(cluster.id)
    await backups.removeScrub(cluster.id)
    await pooler.removePooler(cluster.id)
    // A clean shutdown waits until all WAL is archived, so that an undelete loses nothing.
    if ((await postgres.inspect(cluster.id)).is === 'ready') await postgres.stop(cluster.id)
    await receiver.removeReceiver(cluster.id)
    await recordFinalEnd(cluster, world)
    await postgres.remove(cluster.id)
    await hosting.removeLimits(cluster.id)
    return advance('gone', '', async (tx) => {
      await releaseCluster(tx, cluster.id)
      await endArchives(tx, cluster.id)
      await releaseUnneeded(tx, cluster.id)
    })
  },

  async deleted(cluster, world) {
    const { db, repository, keep } = world
    const keepDays = cluster.scratch ? null : keep.deletedDays
    // Before their files, so that no undelete begins that would lack them.
    const areForgotten = await db.transaction((tx) => forgetBackups(tx, cluster.id, keepDays))
    if (!areForgotten) {
      await keepDescribed(cluster, world)
      return wait(3600, 'keeping its backups')
    }
    await repository.removeCluster(cluster.id)
    return advance('purged', '', (tx) => releasePins(tx, cluster.id))
  },
}

async function enableExtensions({ id, extensions }: Cluster, { postgres }: World): Promise<void> {
  if (extensions.length === 0) return
  const available = await postgres.extensions.list(id, defaultDatabase)
  const installed = new Set(available.filter((each) => each.installed).map(({ name }) => name))
  for (const name of extensions) {
    // One may have been enabled by another one that requires it.
    if (!installed.has(name)) await postgres.extensions.enable(id, defaultDatabase, name)
  }
}

async function findDiskProblem(hosting: World['hosting']): Promise<string | undefined> {
  const free = await hosting.freeBytes()
  if (free >= minFreeBytes) return undefined
  return `not enough disk space: ${Math.floor(free / 1024 / 1024)} MB are free, ${minFreeBytes / 1024 / 1024} MB are needed`
}

/** Returns a reason if the work fails because of a full disk; passes on other errors. */
async function findDiskFull(work: Promise<void>): Promise<string | undefined> {
  try {
    await work
    return undefined
  } catch (err) {
    if (isDiskFull(describeError(err))) return 'the disk is full'
    throw err
  }
}
