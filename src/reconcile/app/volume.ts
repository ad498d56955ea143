import type { VolumeDriver } from '../../drivers/volume/driver.ts'
import type { MachineMount } from '../../model/app/machine-config.ts'
import {
  gigabyte,
  type Snapshot,
  sizeWhenFull,
  snapshotStates,
  type Volume,
  volumeStates,
} from '../../model/app/volume.ts'
import { newId } from '../../model/ids.ts'
import { nowMicros } from '../../model/time.ts'
import {
  findMount,
  insertSnapshot,
  isBeingCopied,
  listSnapshots,
  setSnapshotFailure,
  setSnapshotSize,
  setVolumeFailure,
  setVolumeSize,
  snapshotsToRemove,
  volumesToRemove,
} from '../../store/app/volume.ts'
import type { Query, Tx } from '../../store/db.ts'
import { transition } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import { advance, type Steps, wait } from '../step.ts'

const daySeconds = 86_400
/** As often a volume is looked at while nothing happens to it. */
const lookSeconds = 3600
/** The same for one that grows by itself: a program fills a gigabyte in about that time. */
const fillSeconds = 10

export const volumeSteps: Steps<typeof volumeStates, Volume> = {
  async creating(volume, { volumes }) {
    const work = await volumes.ensureVolume({ id: volume.id, sizeGb: volume.sizeGb, ...sourceOf(volume) })
    if (work.is === 'running') return wait(1, 'copying')
    if (work.is === 'done') return advance('ready')
    return advance('failed', work.reason, (tx) => setVolumeFailure(tx, volume.id, work.reason))
  },

  async created(volume, world) {
    const { db } = world
    const mount = await findMount(db, volume)
    const grown = mount && sizeIfFull(volume, mount, world.volumes)
    if (grown !== undefined)
      return advance('full', `it is full: it gets ${grown} GB`, (tx) => setVolumeSize(tx, volume.id, grown))
    const look = mount?.extend_threshold_percent ? fillSeconds : lookSeconds
    const due = await secondsToSnapshot(db, volume)
    if (due > 0) return wait(Math.min(due, look), '')
    return wait(look, '', async (tx) => {
      const id = `vs_${newId()}`
      if (await insertSnapshot(tx, id, volume, volume.sizeGb * gigabyte)) await enqueue(tx, 'snapshot', id)
    })
  },

  async extending(volume, { db, volumes }) {
    if (volume.machineId !== null && (await volumes.growsAtStart()))
      return advance('grown', 'the machine sees the new size after its next start')
    // What is held still for a copy cannot grow.
    if (await isBeingCopied(db, volume.id)) return wait(1, 'a copy of it is being made')
    await volumes.extendVolume(volume.id, volume.sizeGb)
    return advance('grown')
  },

  async pending_destroy(volume) {
    const left = daySeconds - secondsSince(volume.stateSince)
    return left > 0 ? wait(Math.min(left, lookSeconds), 'kept for a day') : advance('over')
  },

  async destroying(volume, { db, volumes }) {
    if (await isBeingCopied(db, volume.id)) return wait(5, 'a copy of it is being made')
    await volumes.removeVolume(volume.id)
    return advance('gone')
  },
}

export const snapshotSteps: Steps<typeof snapshotStates, Snapshot> = {
  async creating(snapshot, { volumes }) {
    const work = await volumes.ensureSnapshot(snapshot.volumeId, snapshot.id)
    if (work.is === 'running') return wait(1, 'copying')
    if (work.is === 'done') return advance('done', '', (tx) => measureSnapshot(tx, snapshot, volumes))
    return advance('failed', work.reason, (tx) => setSnapshotFailure(tx, snapshot.id, work.reason))
  },

  created: keepForItsTime,
  failed: keepForItsTime,

  async removing(snapshot, { db, volumes }) {
    if (await isBeingCopied(db, snapshot.id)) return wait(5, 'a volume is being made from it')
    await volumes.removeSnapshot(snapshot.id)
    return advance('gone')
  },
}

async function keepForItsTime(snapshot: Snapshot) {
  const left = snapshot.retentionDays * daySeconds - secondsSince(snapshot.createdAt)
  return left > 0 ? wait(Math.min(left, daySeconds), '') : advance('over')
}

/** Tells volumes and snapshots of an app to go, in the transaction that records the step. Undefined when all know. */
export async function dismissVolumes(db: Query, appId: string): Promise<((tx: Tx) => Promise<void>) | undefined> {
  const [volumes, snapshots] = [
    await volumesToRemove(db, appId, removalBatch),
    await snapshotsToRemove(db, appId, removalBatch),
  ]
  if (volumes.length === 0 && snapshots.length === 0) return undefined
  return async (tx) => {
    for (const id of snapshots) await transition(tx, 'snapshot', snapshotStates, id, 'remove')
    for (const id of volumes) await transition(tx, 'volume', volumeStates, id, 'remove')
  }
}

/** Short transactions, so that a large app never holds others up. */
const removalBatch = 100

function sourceOf(volume: Volume): Pick<Parameters<VolumeDriver['ensureVolume']>[0], 'from'> {
  if (volume.sourceSnapshotId !== null) return { from: { snapshotId: volume.sourceSnapshotId } }
  return volume.sourceVolumeId === null ? {} : { from: { volumeId: volume.sourceVolumeId } }
}

function sizeIfFull(volume: Volume, mount: MachineMount, volumes: VolumeDriver): number | undefined {
  const measure = mount.extend_threshold_percent ? volumes.measureVolume(volume.id) : undefined
  if (!measure) return undefined
  const { blocks, blockSize, bytesUsed } = measure
  return sizeWhenFull(volume, mount, { bytesUsed, bytesTotal: blocks * blockSize })
}

/** Only while somebody uses it: nothing changes otherwise. */
async function secondsToSnapshot(db: Query, volume: Volume): Promise<number> {
  if (!volume.autoBackup) return Number.POSITIVE_INFINITY
  const last = (await listSnapshots(db, volume.id))[0]?.createdAt ?? volume.createdAt
  if (volume.machineId === null && (volume.detachedAt ?? 0n) < last) return Number.POSITIVE_INFINITY
  return daySeconds - secondsSince(last)
}

async function measureSnapshot(tx: Tx, snapshot: Snapshot, volumes: VolumeDriver): Promise<void> {
  await setSnapshotSize(tx, snapshot.id, volumes.measureSnapshot(snapshot.id))
}

function secondsSince(time: bigint): number {
  return Number(nowMicros() - time) / 1e6
}
