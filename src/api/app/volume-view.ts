import { hash } from 'node:crypto'
import { Type } from 'typebox'
import { measureVolume } from '../../live/app/volume.ts'
import type { LiveContext } from '../../live/context.ts'
import { gigabyte, type Snapshot, snapshotStates, type Volume, volumeStates } from '../../model/app/volume.ts'
import { toMillis, toRfc3339 } from '../../model/time.ts'

const OptionalText = Type.Union([Type.String(), Type.Null()])
const Count = Type.Optional(Type.Integer())

export const VolumeView = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    state: Type.Enum(Object.keys(volumeStates)),
    size_gb: Type.Integer(),
    region: Type.String(),
    zone: Type.String(),
    encrypted: Type.Boolean({ description: 'Always false: encryption is left to the disk of the host.' }),
    attached_machine_id: OptionalText,
    attached_alloc_id: OptionalText,
    created_at: Type.String({ format: 'date-time' }),
    updated_at: Type.String({ format: 'date-time', description: 'The last change of its state, size or settings.' }),
    fstype: Type.String(),
    type: Type.String(),
    host_status: Type.String(),
    host_dedication_key: Type.String(),
    snapshot_retention: Type.Integer({ description: 'Days for which snapshots are kept.' }),
    auto_backup_enabled: Type.Boolean(),
    blocks: Count,
    block_size: Count,
    blocks_free: Count,
    blocks_avail: Count,
    bytes_used: Count,
    bytes_total: Count,
    app_name: Type.Optional(Type.String({ description: 'Present in lists of an organization.' })),
    failure: Type.Optional(Type.String({ description: 'Why it could not be created.' })),
  },
  { title: 'Volume' },
)

export const SnapshotView = Type.Object(
  {
    id: Type.String(),
    size: Type.Integer({ description: 'Bytes on disk; 0 until the snapshot is complete.' }),
    volume_size: Type.Integer({ description: 'The size of the volume in bytes.' }),
    digest: Type.String({ description: 'Identifies the content.' }),
    created_at: Type.String({ format: 'date-time' }),
    status: Type.Enum(Object.keys(snapshotStates)),
    retention_days: Type.Integer(),
  },
  { title: 'Snapshot' },
)

/** `withUsage` adds the figures that have to be read from the disk. */
export function volumeView(ctx: LiveContext, volume: Volume, withUsage = true) {
  return {
    id: volume.id,
    name: volume.name,
    state: volume.state,
    size_gb: volume.sizeGb,
    region: volume.region,
    zone: hash('sha256', volume.region).slice(0, 4),
    encrypted: false,
    attached_machine_id: volume.machineId,
    attached_alloc_id: null,
    created_at: new Date(toMillis(volume.createdAt)).toISOString(),
    updated_at: new Date(toMillis(volume.updatedAt)).toISOString(),
    fstype: 'ext4',
    type: 'local',
    host_status: 'ok',
    host_dedication_key: '',
    snapshot_retention: volume.snapshotRetention,
    auto_backup_enabled: volume.autoBackup,
    ...(withUsage ? usageView(ctx, volume) : {}),
    ...(volume.failure === null ? {} : { failure: volume.failure }),
  }
}

function usageView(ctx: LiveContext, volume: Volume) {
  const usage = measureVolume(ctx, volume.id)
  if (!usage) return { bytes_total: volume.sizeGb * gigabyte }
  return {
    blocks: usage.blocks,
    block_size: usage.blockSize,
    blocks_free: usage.blocksFree,
    blocks_avail: usage.blocksFree,
    bytes_used: usage.bytesUsed,
    bytes_total: usage.blocks * usage.blockSize,
  }
}

export function snapshotView(snapshot: Snapshot) {
  return {
    id: snapshot.id,
    size: snapshot.sizeBytes ?? 0,
    volume_size: snapshot.volumeBytes,
    digest: hash('sha256', snapshot.id),
    created_at: toRfc3339(snapshot.createdAt),
    status: snapshot.state,
    retention_days: snapshot.retentionDays,
  }
}
