import { Type } from 'typebox'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'

export const backupStates = defineStates({
  queued: {
    commands: { abandon: 'failed' },
    outcomes: { started: 'running', failed: 'failed' },
  },
  running: {
    commands: { abandon: 'failed' },
    outcomes: { completed: 'completed', failed: 'failed' },
    deadlineMinutes: 10, // counted from the last byte that was copied or verified
  },
  completed: { commands: { expire: 'removing' } },
  failed: { commands: { expire: 'removing' } },
  removing: { outcomes: { gone: 'removed' } },
  removed: {},
})

export interface Backup {
  id: string
  clusterId: string
  label: string
  state: State<typeof backupStates>
  stateSince: Micros
  progressAt: Micros | null
  type: string
  epoch: number | null
  timeline: number | null
  startLsn: string | null
  stopLsn: string | null
  createdAt: Micros
  startedAt: Micros | null
  stoppedAt: Micros | null
  finishedAt: Micros | null
  sizeBytes: number | null
  pinned: boolean
  verifiedAt: Micros | null
  damage: string | null
}

export const CreateBackup = Type.Object({
  type: Type.Optional(
    Type.Enum(['full', 'incr', 'diff'], {
      description: 'Every backup is a full one; the other types are accepted and treated as full.',
    }),
  ),
})

export const PinBackup = Type.Object({
  pinned: Type.Boolean({ description: 'Whether it is kept beyond the recovery window.' }),
})

const OptionalTime = Type.Union([Type.String({ format: 'date-time' }), Type.Null()])

export const BackupView = Type.Object(
  {
    id: Type.String({ description: 'The label, which identifies it in a restore request.' }),
    status: Type.Enum(['queued', 'running', 'completed', 'failed']),
    type: Type.Enum(['full']),
    size_bytes: Type.Union([Type.Integer(), Type.Null()]),
    started_at: OptionalTime,
    finished_at: OptionalTime,
    verified_at: Type.Union([Type.String({ format: 'date-time' }), Type.Null()], {
      description: 'When its checksums were last verified.',
    }),
    pinned: Type.Boolean({ description: 'Whether it is kept beyond the recovery window.' }),
    failure: Type.Optional(Type.String({ description: 'Why a `failed` backup failed, or what a scrub found.' })),
  },
  { title: 'PostgresBackup' },
)
