// Minor upgrades: a ready cluster is restarted with the programs of the installation that new clusters get. If its server
// does not start with them, it goes back to those of before.
import { describeError } from '../../model/errors.ts'
import type { Cluster, Health } from '../../model/postgres/cluster.ts'
import { isInMaintenance } from '../../model/postgres/maintenance.ts'
import { clusterSpec, needsOf } from '../../model/postgres/spec.ts'
import { isNewerVersion, outdatedNote } from '../../model/postgres/upgrade.ts'
import { type Micros, nowMicros } from '../../model/time.ts'
import { setHealth } from '../../store/postgres/cluster.ts'
import { hasActiveImport } from '../../store/postgres/import.ts'
import {
  findUpgrade,
  markRestarted,
  planUpgrade,
  revertUpgrade,
  setUpgradeEnd,
  setVersions,
  startUpgrade,
  type Upgrade,
} from '../../store/postgres/upgrade.ts'
import { type World, wait } from '../step.ts'
import { waitForServer } from './endpoint.ts'

/** A server that exits again and again after this does not run with the new programs. */
const stoppedSeconds = 10
/** A server that is still starting may be recovering, which takes a while if it had to be killed. */
const startingSeconds = 300

/** Undefined if there is no upgrade to work on. */
export async function keepUpgraded(cluster: Cluster, world: World) {
  const upgrade = await findUpgrade(world.db, cluster.id)
  if (upgrade?.phase === 'planned') {
    const isDue = upgrade.plannedAt === null || upgrade.plannedAt <= nowMicros()
    // A restart would end the copy of an import.
    return isDue && !(await hasActiveImport(world.db, cluster.id)) ? begin(cluster, world) : undefined
  }
  if (upgrade?.phase === 'restarting') return restart(cluster, upgrade, world)
  if (upgrade?.phase === 'reverting') return goBack(cluster, upgrade, world)
  return planMaintenance(cluster, upgrade, world)
}

/** A version that did not start is not tried again by itself. */
async function planMaintenance(cluster: Cluster, last: Upgrade | undefined, { db }: World) {
  const { id, health, maintenanceWindow, newestVersion, toolchain } = cluster
  if (maintenanceWindow === null || newestVersion === null || health === 'down') return undefined
  const running = toolchain!.version
  if (!isNewerVersion(newestVersion, running) || !isInMaintenance(maintenanceWindow, nowMicros())) return undefined
  if (last?.phase === 'failed' && last.toVersion === newestVersion) return undefined
  if (await hasActiveImport(db, id)) return undefined
  const upgrade = { fromVersion: running, toVersion: newestVersion, plannedAt: null }
  return wait(0, 'an upgrade is due', async (tx) => void (await planUpgrade(tx, id, upgrade)))
}

async function begin(cluster: Cluster, { hosting }: World) {
  const { id } = cluster
  const previous = cluster.toolchain!
  // A failure that happens twice in a row is not temporary.
  const find = () => hosting.findToolchain(cluster.pgMajor, needsOf(cluster))
  const target = await find()
    .catch(find)
    .catch((error: Error) => error)
  if (target instanceof Error) {
    const error = describeError(target)
    return wait(0, error, (tx) => setUpgradeEnd(tx, id, 'failed', error))
  }
  if (!isNewerVersion(target.version, previous.version)) {
    const error = `PostgreSQL ${target.version}, which is installed, is not newer than ${previous.version}`
    return wait(0, error, (tx) => setUpgradeEnd(tx, id, 'failed', error))
  }
  return wait(0, `upgrading to PostgreSQL ${target.version}`, (tx) => startUpgrade(tx, id, previous, target))
}

/** The cluster has its new installation already; what is left is a clean restart. */
async function restart(cluster: Cluster, upgrade: Upgrade, world: World) {
  const { id } = cluster
  const target = upgrade.target!
  const isRunning = (await world.postgres.inspect(id)).is === 'ready'
  // An installation can also be replaced in place, so that only the version of the server tells whether it is the new one.
  if (isRunning && upgrade.restartedAt === null && (await readRunning(cluster, world)) !== target.version) {
    await world.postgres.stop(id)
  }
  const problem = await start(cluster, world)
  if (problem !== undefined) return waitOrRevert(cluster, upgrade, problem, world)
  const version = await readRunning(cluster, world)
  return wait(0, `upgraded to PostgreSQL ${version}`, async (tx) => {
    await setUpgradeEnd(tx, id, 'done')
    await setVersions(tx, id, version, target.version)
  })
}

/** Returns why the server is not ready; undefined if it is. */
async function start(cluster: Cluster, world: World): Promise<string | undefined> {
  try {
    await world.postgres.ensureRunning(cluster.id, clusterSpec(cluster, world.hosting))
    return await waitForServer(cluster, world)
  } catch (error) {
    return describeError(error)
  }
}

async function waitOrRevert(cluster: Cluster, upgrade: Upgrade, problem: string, { postgres }: World) {
  const { id } = cluster
  const down: Health = { status: 'down', reason: problem }
  const seconds = secondsSince(upgrade.restartedAt)
  const isStarting = (await postgres.inspect(id)).is === 'starting'
  if (seconds < (isStarting ? startingSeconds : stoppedSeconds)) {
    return wait(1, problem, async (tx) => {
      await markRestarted(tx, id)
      await setHealth(tx, id, down)
    })
  }
  const [from, to] = [upgrade.previous!, upgrade.target!]
  const error = `PostgreSQL ${to.version} does not start, so the cluster runs ${from.version} again: ${problem}`
  return wait(0, error, (tx) => revertUpgrade(tx, id, from, error))
}

function secondsSince(time: Micros | null): number {
  return time === null ? 0 : Number((nowMicros() - time) / 1_000_000n)
}

async function goBack(cluster: Cluster, upgrade: Upgrade, world: World) {
  const { id } = cluster
  const problem = await start(cluster, world)
  if (problem !== undefined) return wait(1, problem, (tx) => setHealth(tx, id, { status: 'down', reason: problem }))
  return wait(0, upgrade.error ?? '', (tx) => setUpgradeEnd(tx, id, 'failed'))
}

/** Debian adds its own version in parentheses. */
async function readRunning({ id }: Cluster, { postgres }: World): Promise<string> {
  const [row] = await postgres.query<{ server_version: string }>(id, 'postgres', 'show server_version')
  return row!.server_version.split(' ')[0]!
}

interface Versions {
  running: string
  /** Undefined if there is no installation any more. */
  newest: string | undefined
  /** Empty if the cluster runs the newest version. */
  note: string
}

export async function readVersions(cluster: Cluster, world: World): Promise<Versions> {
  const running = await readRunning(cluster, world)
  const found = await world.hosting.findToolchain(cluster.pgMajor, needsOf(cluster)).catch(() => undefined)
  const newest = found?.version
  const isOutdated = newest !== undefined && isNewerVersion(newest, running)
  return { running, newest, note: isOutdated ? outdatedNote(cluster.id, running, newest) : '' }
}
