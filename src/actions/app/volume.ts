import { chooseRegion } from '../../model/account/region.ts'
import { runningMachineStates } from '../../model/app/app.ts'
import {
  type CreateVolume,
  defaultRetentionDays,
  defaultSizeGb,
  gigabyte,
  type Snapshot,
  snapshotIdPattern,
  type UpdateVolume,
  type Volume,
  volumeIdPattern,
  volumeStates,
} from '../../model/app/volume.ts'
import { BerthError, conflict, invalid, notFound } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { mayKeepVolume } from '../../store/account/quota.ts'
import { appNotFound, getVisibleApp, getWritableApp } from '../../store/app/visible.ts'
import {
  findSource,
  findVolume,
  insertSnapshot,
  insertVolume,
  listOrgVolumes,
  listSnapshots,
  listVolumes,
  lockVolume,
  machineState,
  type OrgVolumeFilter,
  setVolumeBackups,
  setVolumeSize,
  type VolumeSource,
  volumeNotFound,
} from '../../store/app/volume.ts'
import type { Tx } from '../../store/db.ts'
import { transition } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import { getOrg } from '../account/org.ts'
import { type Context, checked, getCaller } from '../context.ts'
import { type ChangePage, pageOfChanges } from '../cursor.ts'

export async function createVolume(ctx: Context, appName: string, input: CreateVolume): Promise<Volume> {
  const { region, source } = await checked(ctx, () => {
    const from = readSource(input)
    // A copy stays in the region of its source unless another is named.
    return { region: from && !input.region ? undefined : regionOf(ctx, input.region), source: from }
  })
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  return ctx.db.transaction(async (tx) => {
    const origin = source && (await getSource(tx, app.orgId, source))
    const sizeGb = sizeFor(input.size_gb, origin)
    const volume = await insertVolume(tx, {
      id: `vol_${newId()}`,
      appId: app.id,
      name: input.name,
      region: region ?? origin!.region,
      sizeGb,
      snapshotRetention: input.snapshot_retention ?? defaultRetentionDays,
      autoBackup: input.auto_backup_enabled ?? true,
      sourceVolumeId: source && 'volumeId' in source ? source.volumeId : null,
      sourceSnapshotId: source && 'snapshotId' in source ? source.snapshotId : null,
    })
    if (!volume) throw appNotFound()
    await enqueue(tx, 'volume', volume.id)
    return volume
  })
}

export async function listVolumesOf(ctx: Context, appName: string): Promise<Volume[]> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  return listVolumes(ctx.db, app.id)
}

export async function getVolume(ctx: Context, appName: string, id: string): Promise<Volume> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  const volume = volumeIdPattern.test(id) ? await findVolume(ctx.db, app.id, id) : undefined
  if (!volume) throw volumeNotFound()
  return volume
}

export function updateVolume(ctx: Context, appName: string, id: string, input: UpdateVolume): Promise<Volume> {
  return change(ctx, appName, id, async (tx, volume) => {
    const retention = input.snapshot_retention ?? volume.snapshotRetention
    await setVolumeBackups(tx, id, retention, input.auto_backup_enabled ?? volume.autoBackup)
    if (volume.state === 'created') await enqueue(tx, 'volume', id)
  })
}

export interface Extended {
  volume: Volume
  /** Whether the machine it is attached to is running. */
  isInUse: boolean
}

export async function extendVolume(ctx: Context, appName: string, id: string, sizeGb: number): Promise<Extended> {
  let isInUse = false
  const volume = await change(ctx, appName, id, async (tx, before) => {
    if (sizeGb <= before.sizeGb) {
      throw invalid(`size_gb must be more than the current ${before.sizeGb}; volumes cannot shrink`)
    }
    await setVolumeSize(tx, id, sizeGb)
    await transition(tx, 'volume', volumeStates, id, 'extend')
    isInUse = before.machineId !== null && isRunning(await machineState(tx, before.machineId))
  })
  return { volume, isInUse }
}

/**
 * The volume is kept for a day. One that was never ready is removed immediately, and so is one that would make deleted
 * volumes take more space than the organization may reserve.
 */
export function deleteVolume(ctx: Context, appName: string, id: string): Promise<Volume> {
  return change(ctx, appName, id, async (tx, volume) => {
    if (volume.machineId !== null) {
      throw precondition(`volume ${id} is attached to machine ${volume.machineId}; destroy the machine first`)
    }
    if (volume.state === 'pending_destroy' || volume.state === 'destroying') return
    const command = (await mayKeepVolume(tx, id)) ? 'delete' : 'remove'
    await transition(tx, 'volume', volumeStates, id, command)
  })
}

export async function createSnapshot(ctx: Context, appName: string, id: string): Promise<void> {
  await change(ctx, appName, id, async (tx, volume) => {
    if (volume.state !== 'created') throw precondition(`volume ${id} is ${volume.state}`)
    const snapshotId = `vs_${newId()}`
    if (!(await insertSnapshot(tx, snapshotId, volume, volume.sizeGb * gigabyte, true))) {
      throw conflict(`a snapshot of volume ${id} is in progress`)
    }
    await enqueue(tx, 'snapshot', snapshotId)
  })
}

export async function listSnapshotsOf(ctx: Context, appName: string, id: string): Promise<Snapshot[]> {
  return listSnapshots(ctx.db, (await getVolume(ctx, appName, id)).id)
}

export async function listVolumesOfOrg(ctx: Context, slug: string, filter: OrgVolumeFilter, page: ChangePage) {
  const org = await getOrg(ctx, await getCaller(ctx), slug)
  return pageOfChanges(page, volumeIdPattern, (place) => listOrgVolumes(ctx.db, org.id, filter, place))
}

async function change(
  ctx: Context,
  appName: string,
  id: string,
  body: (tx: Tx, volume: Volume) => Promise<void>,
): Promise<Volume> {
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  if (!volumeIdPattern.test(id)) throw volumeNotFound()
  return ctx.db.transaction(async (tx) => {
    const volume = await lockVolume(tx, app.id, id)
    if (!volume) throw volumeNotFound()
    await body(tx, volume)
    return (await findVolume(tx, app.id, id))!
  })
}

type Source = { volumeId: string } | { snapshotId: string }

function readSource(input: CreateVolume): Source | undefined {
  if (input.fstype === 'raw') throw invalid('fstype raw is not possible here; volumes have an ext4 filesystem')
  if (input.snapshot_id && input.source_volume_id) {
    throw invalid('snapshot_id and source_volume_id are mutually exclusive')
  }
  if (input.snapshot_id) {
    if (!snapshotIdPattern.test(input.snapshot_id)) throw notFound('snapshot not found')
    return { snapshotId: input.snapshot_id }
  }
  if (!input.source_volume_id) return undefined
  if (!volumeIdPattern.test(input.source_volume_id)) throw volumeNotFound()
  return { volumeId: input.source_volume_id }
}

async function getSource(tx: Tx, orgId: string, source: Source): Promise<VolumeSource> {
  const found = await findSource(tx, orgId, source)
  if (!found) throw 'volumeId' in source ? volumeNotFound() : notFound('snapshot not found')
  if (!['created', 'extending', 'pending_destroy'].includes(found.state)) {
    throw precondition(`what is to be copied is ${found.state}`)
  }
  return found
}

function sizeFor(asked: number | undefined, source: VolumeSource | undefined): number {
  if (!source) return asked ?? defaultSizeGb
  if (asked !== undefined && asked < source.sizeGb) {
    throw invalid(`size_gb must be at least the ${source.sizeGb} of the source`)
  }
  return asked ?? source.sizeGb
}

function regionOf(ctx: Context, asked: string | undefined): string {
  const region = chooseRegion(ctx.settings, asked)
  if (region instanceof BerthError) throw region
  return region
}

function isRunning(state: string | undefined): boolean {
  return runningMachineStates.some((running) => running === state)
}

function precondition(message: string) {
  return new BerthError('precondition_failed', `failed_precondition: ${message}`)
}
