import { Type } from 'typebox'
import type { Micros } from '../time.ts'

type CheckpointState = 'making' | 'ready' | 'failed' | 'removing'

export interface Checkpoint {
  sandboxId: string
  /** `v1`, `v2`, …, or `auto-1`, `auto-2`, … */
  id: string
  /** Whether a restore created it from the filesystem that it replaced. */
  isAuto: boolean
  comment: string
  /** The checkpoint the filesystem was restored from. */
  sourceId: string | null
  /** For an automatic checkpoint: the checkpoint whose restore it precedes. */
  restores: string | null
  state: CheckpointState
  failure: string | null
  createdAt: Micros
}

/** The id that clients use for the current filesystem. */
export const currentCheckpoint = 'Current'

export const checkpointIdPattern = /^(v|auto-)[1-9]\d{0,8}$/

/** The limit per sandbox, because each is a copy of the writable layers. */
export const maxCheckpoints = 100

/** Older automatic checkpoints are deleted, so that repeated restores do not fill the disk. */
export const keptAutomatic = 5

const maxCommentLength = 1024

export const CreateCheckpoint = Type.Object({
  comment: Type.Optional(Type.String({ maxLength: maxCommentLength, description: 'A comment for the list.' })),
})

export const CheckpointView = Type.Object(
  {
    id: Type.String(),
    create_time: Type.String({ format: 'date-time' }),
    comment: Type.Optional(Type.String()),
    source_id: Type.Optional(Type.String({ description: 'The checkpoint the filesystem was restored from.' })),
    history: Type.Array(Type.String(), { description: 'The chain of checkpoints it derives from, nearest first.' }),
    is_auto: Type.Boolean({ description: 'Created by a restore, from the filesystem that it replaced.' }),
    health: Type.String({ description: 'Empty when the checkpoint is intact.' }),
  },
  { title: 'Checkpoint' },
)

/** One line of the streamed response of a long operation. */
export const CheckpointEvent = Type.Object(
  {
    type: Type.Enum(['info', 'error', 'complete']),
    data: Type.Optional(Type.String()),
    error: Type.Optional(Type.String()),
    time: Type.String({ format: 'date-time' }),
  },
  { title: 'CheckpointEvent' },
)

/** The chain of checkpoints this one derives from, nearest first, up to the first deleted one. */
export function historyOf(checkpoint: Pick<Checkpoint, 'sourceId'>, all: readonly Checkpoint[]): string[] {
  const line: string[] = []
  for (let id = checkpoint.sourceId; id !== null && !line.includes(id); ) {
    line.push(id)
    id = all.find((other) => other.id === id)?.sourceId ?? null
  }
  return line
}
