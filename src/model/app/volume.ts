import { type Static, Type } from 'typebox'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import type { MachineMount } from './machine-config.ts'

export const volumeStates = defineStates({
  creating: {
    commands: { delete: 'destroying', remove: 'destroying' },
    outcomes: { ready: 'created', failed: 'failed' },
    deadlineMinutes: 240, // copying a large volume takes long
  },
  created: {
    commands: { extend: 'extending', delete: 'pending_destroy', remove: 'destroying' },
    outcomes: { full: 'extending' },
    keeps: 'snapshots',
  },
  extending: {
    commands: { delete: 'pending_destroy', remove: 'destroying' },
    outcomes: { grown: 'created' },
  },
  // A volume that was deleted by mistake can be copied for a day.
  pending_destroy: { commands: { remove: 'destroying' }, outcomes: { over: 'destroying' } },
  failed: { commands: { delete: 'destroying', remove: 'destroying' } },
  destroying: { outcomes: { gone: 'destroyed' } },
  destroyed: {},
})
type VolumeState = State<typeof volumeStates>

export const snapshotStates = defineStates({
  creating: { commands: { remove: 'removing' }, outcomes: { done: 'created', failed: 'failed' }, deadlineMinutes: 240 },
  created: { commands: { remove: 'removing' }, outcomes: { over: 'removing' }, keeps: 'until its time is over' },
  failed: { commands: { remove: 'removing' }, outcomes: { over: 'removing' } },
  removing: { outcomes: { gone: 'removed' } },
  removed: {},
})
type SnapshotState = State<typeof snapshotStates>

export interface Volume {
  id: string
  appId: string
  name: string
  state: VolumeState
  stateSince: Micros
  region: string
  sizeGb: number
  /** Days that snapshots are kept. */
  snapshotRetention: number
  /** Whether a snapshot is taken every day. */
  autoBackup: boolean
  sourceVolumeId: string | null
  sourceSnapshotId: string | null
  /** The machine it is attached to. */
  machineId: string | null
  detachedAt: Micros | null
  createdAt: Micros
  updatedAt: Micros
  failure: string | null
}

export interface Snapshot {
  id: string
  volumeId: string
  state: SnapshotState
  stateSince: Micros
  /** Null until the snapshot is complete. */
  sizeBytes: number | null
  volumeBytes: number
  retentionDays: number
  createdAt: Micros
  failure: string | null
}

export const gigabyte = 1024 ** 3
export const defaultSizeGb = 3
const maxSizeGb = 500
export const defaultRetentionDays = 5
export const volumeIdPattern = /^vol_[a-z0-9]{16}$/
export const snapshotIdPattern = /^vs_[a-z0-9]{16}$/

/** The minimal share of a disk that the filesystem leaves for files. */
const usableShare = 0.9

/** The size to which auto-extend should grow the volume, or undefined. `bytesTotal` may lag behind an extension in progress. */
export function extendedSizeGb(
  { sizeGb }: Pick<Volume, 'sizeGb'>,
  mount: Pick<MachineMount, 'extend_threshold_percent' | 'add_size_gb' | 'size_gb_limit'>,
  { bytesUsed, bytesTotal }: { bytesUsed: number; bytesTotal: number },
): number | undefined {
  const { extend_threshold_percent: threshold, add_size_gb: more, size_gb_limit: limit } = mount
  const bytes = Math.max(bytesTotal, sizeGb * gigabyte * usableShare)
  if (!threshold || !more || bytesUsed * 100 < threshold * bytes) return undefined
  const wanted = Math.min(sizeGb + more, limit || maxSizeGb, maxSizeGb)
  return wanted > sizeGb ? wanted : undefined
}

const SizeGb = Type.Integer({
  minimum: 1,
  maximum: maxSizeGb,
  refusal: `size_gb must be a whole number from 1 to ${maxSizeGb}`,
})
const Retention = Type.Integer({
  minimum: 1,
  maximum: 60,
  description: 'Days that snapshots are kept; 5 when omitted.',
  refusal: 'snapshot_retention must be a whole number of days from 1 to 60',
})
const AutoBackup = Type.Boolean({
  description: 'Take a snapshot every day while the volume is in use; true when omitted.',
})

export const CreateVolume = Type.Object({
  name: Type.String({
    pattern: '^[a-z0-9_]{1,30}$',
    description: 'Need not be unique; a machine can mount any free volume of this name.',
    refusal: 'name must be 1 to 30 lowercase letters, digits and underscores',
  }),
  region: Type.Optional(Type.String()),
  size_gb: Type.Optional({ ...SizeGb, description: 'Gigabytes; 3 when omitted, or the size of the source.' }),
  encrypted: Type.Optional(
    Type.Boolean({ description: 'Accepted; volumes are encrypted only if the disk of the host is.' }),
  ),
  fstype: Type.Optional(
    Type.Enum(['ext4', 'raw'], { refusal: 'fstype must be ext4', description: '`ext4`; `raw` is rejected.' }),
  ),
  require_unique_zone: Type.Optional(Type.Boolean({ description: 'Accepted and ignored; there is one zone.' })),
  unique_zone_app_wide: Type.Optional(Type.Boolean()),
  snapshot_id: Type.Optional(Type.String({ description: 'The snapshot to restore, of the same organization.' })),
  source_volume_id: Type.Optional(Type.String({ description: 'The volume to fork, of the same organization.' })),
  snapshot_retention: Type.Optional(Retention),
  auto_backup_enabled: Type.Optional(AutoBackup),
})
export type CreateVolume = Static<typeof CreateVolume>

export const UpdateVolume = Type.Object({
  snapshot_retention: Type.Optional(Retention),
  auto_backup_enabled: Type.Optional(AutoBackup),
})
export type UpdateVolume = Static<typeof UpdateVolume>

export const ExtendVolume = Type.Object({
  size_gb: { ...SizeGb, description: 'Gigabytes, more than the current size.' },
})
export type ExtendVolume = Static<typeof ExtendVolume>
