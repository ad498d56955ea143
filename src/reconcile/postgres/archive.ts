import type { Toolchain } from '../../drivers/postgres/toolchain/toolchain.ts'
import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { formatLsn } from '../../model/postgres/wal.ts'
import {
  type Archive,
  type ArchiveBase,
  findCurrentArchive,
  listArchives,
  startEpoch,
} from '../../store/postgres/archive.ts'
import type { World } from '../step.ts'

/** The log of the cluster is being kept, from now on at the latest. Starts the first epoch if there is none. */
export async function ensureArchive(cluster: Cluster, world: World, base: ArchiveBase | null): Promise<Archive> {
  const archive = (await findCurrentArchive(world.db, cluster.id)) ?? (await startNextEpoch(cluster, world, base))
  await world.receiver.ensureReceiver(cluster.id, {
    epoch: archive.epoch,
    slot: archive.slot,
    toolchain: cluster.toolchain as Toolchain,
    port: cluster.directPort!,
  })
  return archive
}

/** A slot that was lost has lost log with it: the epoch ends there, and a new one begins with a new slot. */
export async function keepArchive(cluster: Cluster, world: World): Promise<Health | undefined> {
  const archive = await ensureArchive(cluster, world, null)
  const slot = await world.receiver.inspectSlot(cluster.id, archive.slot)
  if (slot.is !== 'ok') {
    if (slot.is === 'lost') await world.receiver.dropSlot(cluster.id, archive.slot)
    await startNextEpoch(cluster, world, null)
    return degraded('the archive lost its place in the log and was started anew; a backup follows')
  }
  if (slot.active) return undefined
  const until = slot.restartLsn === undefined ? '' : `; it has everything up to ${formatLsn(slot.restartLsn)}`
  const why = await findReceiverError(cluster, world)
  return degraded(`the archive is not receiving${why && `: ${why}`}${until}`)
}

/** What the receiver said before it ended, such as that its disk is full; that it lost its connection tells nothing. */
async function findReceiverError(cluster: Cluster, { receiver }: World): Promise<string> {
  const seen = await receiver.inspectReceiver(cluster.id)
  const lines = seen.is === 'stopped' ? seen.log : []
  const said = lines.map((line) => /error: (.*)$/.exec(line)?.[1]).filter((words) => words !== undefined)
  return said.findLast((words) => words !== 'disconnected') ?? ''
}

async function startNextEpoch(cluster: Cluster, world: World, base: ArchiveBase | null): Promise<Archive> {
  const last = (await listArchives(world.db, cluster.id)).at(-1)
  const epoch = (last?.epoch ?? 0) + 1
  const slot = `berth_${epoch}`
  if (last) {
    // Nobody reads from the slot of an epoch that is over, and it would hold the log of the cluster for ever.
    await world.receiver.removeReceiver(cluster.id)
    await world.receiver.dropSlot(cluster.id, last.slot)
  }
  await world.receiver.ensureSlot(cluster.id, slot)
  const made = await world.receiver.inspectSlot(cluster.id, slot)
  if (made.is !== 'ok' || made.restartLsn === undefined) throw new Error(`the slot ${slot} is not there`)
  const startLsn = formatLsn(made.restartLsn)
  const timeline = await readTimeline(cluster, world)
  await world.db.transaction((tx) => startEpoch(tx, { clusterId: cluster.id, epoch, slot, timeline, startLsn, base }))
  return (await findCurrentArchive(world.db, cluster.id))!
}

/** From the name of the file being written: the control file still tells the old one right after a promotion. */
async function readTimeline(cluster: Cluster, { postgres }: World): Promise<number> {
  const [row] = await postgres.query<{ file: string }>(
    cluster.id,
    'postgres',
    'select pg_walfile_name(pg_current_wal_lsn()) as file',
  )
  return Number.parseInt(row!.file.slice(0, 8), 16)
}
