import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import type { ArchiveBase } from '../../model/postgres/restore.ts'
import { dataSpec } from '../../model/postgres/spec.ts'
import { formatLsn } from '../../model/postgres/wal.ts'
import { type Archive, findCurrentArchive, listArchives, startEpoch } from '../../store/postgres/archive.ts'
import { markUndescribed } from '../../store/postgres/cluster-describe.ts'
import type { World } from '../step.ts'
import { describeNow } from './describe.ts'

/** Keeps the receiver of the cluster running. Starts the first epoch if there is none. */
export async function ensureArchive(cluster: Cluster, world: World, base: ArchiveBase | null): Promise<Archive> {
  const archive = (await findCurrentArchive(world.db, cluster.id)) ?? (await startNextEpoch(cluster, world, base))
  await world.receiver.ensureReceiver(cluster.id, {
    epoch: archive.epoch,
    slot: archive.slot,
    ...dataSpec(cluster),
    port: cluster.directPort!,
  })
  return archive
}

/** If the slot was lost, WAL is missing: the epoch ends, and a new one starts with a new slot. */
export async function keepArchive(cluster: Cluster, world: World): Promise<Health | undefined> {
  const archive = await ensureArchive(cluster, world, null)
  const slot = await world.receiver.inspectSlot(cluster.id, archive.slot)
  if (slot.is !== 'ok') {
    if (slot.is === 'lost') await world.receiver.dropSlot(cluster.id, archive.slot)
    await startNextEpoch(cluster, world, null)
    return degraded('the replication slot of the archive was lost; archiving restarts, and a backup follows')
  }
  if (slot.active) return undefined
  const until = slot.restartLsn === undefined ? '' : `; it has everything up to ${formatLsn(slot.restartLsn)}`
  const why = await findReceiverError(cluster, world)
  return degraded(`the archive is not receiving${why && `: ${why}`}${until}`)
}

/** The last error of the receiver, such as a full disk. A lost connection is not informative, so it is skipped. */
async function findReceiverError(cluster: Cluster, { receiver }: World): Promise<string> {
  const seen = await receiver.inspectReceiver(cluster.id)
  const lines = seen.is === 'stopped' ? seen.log : []
  const errors = lines.map((line) => /error: (.*)$/.exec(line)?.[1]).filter((message) => message !== undefined)
  return errors.findLast((message) => message !== 'disconnected') ?? ''
}

export async function startNextEpoch(cluster: Cluster, world: World, base: ArchiveBase | null): Promise<Archive> {
  const last = (await listArchives(world.db, cluster.id)).at(-1)
  const epoch = (last?.epoch ?? 0) + 1
  const slot = `berth_${epoch}`
  if (last) {
    // Without a receiver, the slot of the previous epoch would retain WAL for ever.
    await world.receiver.removeReceiver(cluster.id)
    await world.receiver.dropSlot(cluster.id, last.slot)
  }
  await world.receiver.ensureSlot(cluster.id, slot)
  const made = await world.receiver.inspectSlot(cluster.id, slot)
  if (made.is !== 'ok' || made.restartLsn === undefined)
    throw new Error(`replication slot ${slot} of cluster ${cluster.id} is missing`)
  const startLsn = formatLsn(made.restartLsn)
  const timeline = await readTimeline(cluster, world)
  await world.db.transaction(async (tx) => {
    await markUndescribed(tx, cluster.id)
    await startEpoch(tx, { clusterId: cluster.id, epoch, slot, timeline, startLsn, base })
  })
  await describeNow(cluster, world)
  return (await findCurrentArchive(world.db, cluster.id))!
}

/** Derived from the name of the current WAL file, because pg_control has the old timeline right after a promotion. */
async function readTimeline(cluster: Cluster, { postgres }: World): Promise<number> {
  const [row] = await postgres.query<{ file: string }>(
    cluster.id,
    'postgres',
    'select pg_walfile_name(pg_current_wal_lsn()) as file',
  )
  return Number.parseInt(row!.file.slice(0, 8), 16)
}
