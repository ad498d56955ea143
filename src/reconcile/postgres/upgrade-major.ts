// Major upgrades: a new cluster is restored as a copy of its source, which keeps running, and the copy is upgraded.
import { describeError } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { clusterSpec, needsOf } from '../../model/postgres/spec.ts'
import type { Restore } from '../../store/postgres/restore.ts'
import {
  setMajorUpgraded,
  setUpgradeEnd,
  setUpgradeStage,
  setUpgradeTarget,
  type Upgrade,
} from '../../store/postgres/upgrade.ts'
import { advance, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { startPooler, waitForEndpoints, waitForServer } from './endpoint.ts'
import { renewPasswords } from './password.ts'
import { initializeRestored, isCausedByOwner } from './restore.ts'

const pauseSeconds = 0.3

export async function initializeUpgraded(cluster: Cluster, restore: Restore, upgrade: Upgrade, world: World) {
  if (upgrade.phase === 'restoring') return restoreCopy(cluster, restore, world)
  if (upgrade.target === null) return chooseTarget(cluster, upgrade, world)
  if (upgrade.phase === 'finishing') return finish(cluster, restore, world)
  return runJob(cluster, upgrade, world)
}

/** As for a drill: nobody can connect to the copy, and prepared transactions, which pg_upgrade refuses, are rolled back. */
async function restoreCopy(cluster: Cluster, restore: Restore, world: World) {
  const result = await initializeRestored({ ...cluster, scratch: true }, restore, world)
  if (!('outcome' in result) || result.outcome !== 'ready') return result
  await world.postgres.ensureGrants(cluster.id)
  return wait(0, 'restored', async (tx) => {
    await result.save?.(tx)
    await setUpgradeStage(tx, cluster.id, 'checking')
  })
}

async function chooseTarget(cluster: Cluster, { toVersion }: Upgrade, { hosting }: World) {
  // A failure that happens twice in a row is not temporary.
  const find = () => hosting.findToolchain(toVersion as Cluster['pgMajor'], needsOf(cluster))
  const target = await find()
    .catch(find)
    .catch((error: Error) => error)
  if (target instanceof Error) return advance('failed', describeError(target))
  return wait(0, `upgrading to PostgreSQL ${target.version}`, (tx) => setUpgradeTarget(tx, cluster.id, target))
}

async function runJob(cluster: Cluster, upgrade: Upgrade, { db, hosting, postgres, upgrades }: World) {
  const { id } = cluster
  const target = upgrade.target as Parameters<typeof upgrades.startUpgrade>[1]['target']
  const spec = { ...clusterSpec(cluster, hosting), target }
  const seen = await upgrades.inspectUpgrade(id, spec)
  if (seen.is === 'failed') return advance('failed', seen.reason)
  if (seen.is === 'done') return wait(0, 'upgraded', (tx) => setMajorUpgraded(tx, id, target))
  if (seen.is === 'absent') {
    await postgres.stop(id)
    await upgrades.startUpgrade(id, spec)
    return wait(pauseSeconds, 'starting pg_upgrade')
  }
  await setUpgradeStage(db, id, seen.stage)
  return wait(pauseSeconds, seen.stage)
}

/** The WAL of the new version starts anew, so the archive depends on nothing and its window starts with the first backup. */
async function finish(cluster: Cluster, restore: Restore, world: World) {
  const { hosting, postgres, upgrades } = world
  const { id } = cluster
  await upgrades.removeUpgrade(id)
  await postgres.ensureRunning(id, { ...clusterSpec(cluster, hosting), closed: true })
  const problem = await waitForServer(cluster, world)
  if (problem) return wait(1, problem)
  await postgres.ensureGrants(id)
  await renewPasswords(cluster, world)
  await ensureArchive(cluster, world, null)
  await postgres.ensureRunning(id, clusterSpec(cluster, hosting))
  await startPooler(cluster, world)
  const unreachable = await waitForEndpoints(cluster, world)
  if (unreachable && !isCausedByOwner(unreachable, restore)) return wait(1, describeError(unreachable))
  return advance('ready', `upgraded from ${restore.sourceClusterId}`, (tx) => setUpgradeEnd(tx, id, 'done'))
}
