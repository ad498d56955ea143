import { type Static, Type } from 'typebox'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import type { MachineMount } from './machine-config.ts'

export const volumeStates = defineStates({
  creating: {
    commands: { delete: 'destroying', remove: 'destroying' },
    outcomes: { ready: 'created', failed: 'failed' },
    deadlineMinutes: 240, // a copy of a large one takes long
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
  // Whoever deleted it by mistake has a day to make a copy of it.
  pending_destroy: { commands: { remove: 'destroying' }, outcomes: { over: 'destroying' } },
  failed: { commands: { delete: 'destroying', remove: 'destroying' } },
  destroying: { outcomes: { gone: 'destroyed' } },
  destroyed: {},
})
export type VolumeState = State<typeof volumeStates>

export const snapshotStates = defineStates({
  creating: { commands: { remove: 'removing' }, outcomes: { done: 'created', failed: 'failed' }, deadlineMinutes: 240 },
  created: { commands: { remove: 'removing' }, outcomes: { over: 'removing' }, keeps: 'until its time is over' },
  failed: { commands: { remove: 'removing' }, outcomes: { over: 'removing' } },
  removing: { outcomes: { gone: 'removed' } },
  removed: {},
})
export type SnapshotState = State<typeof snapshotStates>

export interface Volume {
  id: string
  appId: string
  name: string
  state: VolumeState
  stateSince: Micros
  region: string
  sizeGb: number
  /** Days that its snapshots are kept. */
  snapshotRetention: number
  /** A snapshot each day by itself. */
  autoBackup: boolean
  sourceVolumeId: string | null
  sourceSnapshotId: string | null
  /** What it is attached to. */
  machineId: string | null
  detachedAt: Micros | null
  createdAt: Micros
  failure: string | null
}

export interface Snapshot {
  id: string
  volumeId: string
  state: SnapshotState
  stateSince: Micros
  /** Null until it is made. */
  sizeBytes: number | null
  volumeBytes: number
  retentionDays: number
  createdAt: Micros
  failure: string | null
}

export const gigabyte = 1024 ** 3
export const defaultSizeGb = 3
export const maxSizeGb = 500
export const defaultRetentionDays = 5
export const volumeIdPattern = /^vol_[a-z0-9]{16}$/
export const snapshotIdPattern = /^vs_[a-z0-9]{16}$/

/** What a filesystem leaves to files of its disk, at the least. */
const leftToFiles = 0.9

/** What it is to have as its machine mounts it, when that is more than it has. It may be about to grow already. */
export function sizeWhenFull(
  { sizeGb }: Pick<Volume, 'sizeGb'>,
  mount: Pick<MachineMount, 'extend_threshold_percent' | 'add_size_gb' | 'size_gb_limit'>,
  { bytesUsed, bytesTotal }: { bytesUsed: number; bytesTotal: number },
): number | undefined {
  const { extend_threshold_percent: threshold, add_size_gb: more, size_gb_limit: limit } = mount
  const bytes = Math.max(bytesTotal, sizeGb * gigabyte * leftToFiles)
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
  description: 'Days that its snapshots are kept; 5 when omitted.',
  refusal: 'snapshot_retention must be a whole number of days from 1 to 60',
})
const AutoBackup = Type.Boolean({ description: 'Make a snapshot each day while it is in use; true when omitted.' })

export const CreateVolume = Type.Object({
  name: Type.String({
    pattern: '^[a-z0-9_]{1,30}$',
    description: 'Machines may ask for a volume by its name, which several may share.',
    refusal: 'name must be 1 to 30 lowercase letters, digits and underscores',
  }),
  region: Type.Optional(Type.String()),
  size_gb: Type.Optional({ ...SizeGb, description: 'Gigabytes; 3 when omitted, or what it is copied from has.' }),
  encrypted: Type.Optional(
    Type.Boolean({ description: 'Taken, but disks are as encrypted as the disk of the host is.' }),
  ),
  fstype: Type.Optional(
    Type.Enum(['ext4', 'raw'], { refusal: 'fstype must be ext4', description: '`ext4`; `raw` is refused.' }),
  ),
  require_unique_zone: Type.Optional(Type.Boolean({ description: 'Taken; there is one zone.' })),
  unique_zone_app_wide: Type.Optional(Type.Boolean()),
  snapshot_id: Type.Optional(Type.String({ description: 'A snapshot of the same organization to copy.' })),
  source_volume_id: Type.Optional(Type.String({ description: 'A volume of the same organization to copy.' })),
  snapshot_retention: Type.Optional(Retention),
  auto_backup_enabled: Type.Optional(AutoBackup),
})
export type CreateVolume = Static<typeof CreateVolume>

export const UpdateVolume = Type.Object({
  snapshot_retention: Type.Optional(Retention),
  auto_backup_enabled: Type.Optional(AutoBackup),
})
export type UpdateVolume = Static<typeof UpdateVolume>

export const ExtendVolume = Type.Object({ size_gb: { ...SizeGb, description: 'Gigabytes, more than it has now.' } })
export type ExtendVolume = Static<typeof ExtendVolume>
