import type { VolumeDriver } from '../../drivers/volume/driver.ts'
import type { MachineMount } from '../../model/app/machine-config.ts'
import {
  extendedSizeGb,
  gigabyte,
  type Snapshot,
  type snapshotStates,
  type Volume,
  type volumeStates,
} from '../../model/app/volume.ts'
import { newId } from '../../model/ids.ts'
import { nowMicros } from '../../model/time.ts'
import { mayVolumeGrow } from '../../store/account/quota.ts'
import {
  findMount,
  insertSnapshot,
  isBeingCopied,
  listSnapshots,
  setSnapshotFailure,
  setSnapshotSize,
  setVolumeFailure,
  setVolumeSize,
} from '../../store/app/volume.ts'
import type { Query, Tx } from '../../store/db.ts'
import { enqueue } from '../../store/work.ts'
import { advance, type Steps, wait } from '../step.ts'

const daySeconds = 86_400
const idleSeconds = 3600
/** The poll interval of a volume that grows by itself: a program writes about a gigabyte in that time. */
const autoExtendSeconds = 10

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
    const newSizeGb = mount && sizeIfFull(volume, mount, world.volumes)
    const mayGrow = newSizeGb !== undefined && (await mayVolumeGrow(db, volume.id, newSizeGb - volume.sizeGb))
    if (mayGrow)
      return advance('full', `it is full and grows to ${newSizeGb} GB`, (tx) => setVolumeSize(tx, volume.id, newSizeGb))
    const pollSeconds = mount?.extend_threshold_percent ? autoExtendSeconds : idleSeconds
    const due = await secondsToSnapshot(db, volume)
    const note = newSizeGb === undefined ? '' : 'it is full; the quota disk_gb of the organization does not let it grow'
    if (due > 0) return wait(Math.min(due, pollSeconds), note)
    return wait(pollSeconds, note, async (tx) => {
      const id = `vs_${newId()}`
      if (await insertSnapshot(tx, id, volume, volume.sizeGb * gigabyte)) await enqueue(tx, 'snapshot', id)
    })
  },

  async extending(volume, { db, volumes }) {
    if (volume.machineId !== null && (await volumes.growsAtStart()))
      return advance('grown', 'the machine sees the new size after its next start')
    // A filesystem that is frozen for a copy cannot be resized.
    if (await isBeingCopied(db, volume.id)) return wait(1, 'a copy of it is being made')
    await volumes.extendVolume(volume.id, volume.sizeGb)
    return advance('grown')
  },

  async pending_destroy(volume) {
    const left = daySeconds - secondsSince(volume.stateSince)
    return left > 0 ? wait(Math.min(left, idleSeconds), 'kept for a day') : advance('over')
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

  created: keepUntilExpiry,
  failed: keepUntilExpiry,

  async removing(snapshot, { db, volumes }) {
    if (await isBeingCopied(db, snapshot.id)) return wait(5, 'a volume is being made from it')
    await volumes.removeSnapshot(snapshot.id)
    return advance('gone')
  },
}

async function keepUntilExpiry(snapshot: Snapshot) {
  const left = snapshot.retentionDays * daySeconds - secondsSince(snapshot.createdAt)
  return left > 0 ? wait(Math.min(left, daySeconds), '') : advance('over')
}

function sourceOf(volume: Volume): Pick<Parameters<VolumeDriver['ensureVolume']>[0], 'from'> {
  if (volume.sourceSnapshotId !== null) return { from: { snapshotId: volume.sourceSnapshotId } }
  return volume.sourceVolumeId === null ? {} : { from: { volumeId: volume.sourceVolumeId } }
}

function sizeIfFull(volume: Volume, mount: MachineMount, volumes: VolumeDriver): number | undefined {
  const measure = mount.extend_threshold_percent ? volumes.measureVolume(volume.id) : undefined
  if (!measure) return undefined
  const { blocks, blockSize, bytesUsed } = measure
  return extendedSizeGb(volume, mount, { bytesUsed, bytesTotal: blocks * blockSize })
}

/** Volumes that have been detached since their last snapshot have not changed and need no other. */
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
