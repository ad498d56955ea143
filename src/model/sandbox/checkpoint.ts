import { Type } from 'typebox'
import type { Micros } from '../time.ts'

export type CheckpointState = 'making' | 'ready' | 'failed' | 'removing'

export interface Checkpoint {
  sandboxId: string
  /** `v1`, `v2`, …, or `auto-1`, `auto-2`, … */
  id: string
  /** Made by a restore, of what it replaced. */
  isAuto: boolean
  comment: string
  /** The checkpoint that the filesystem came from. */
  sourceId: string | null
  /** Of an automatic one: the checkpoint that replaces what is kept here. */
  restores: string | null
  state: CheckpointState
  failure: string | null
  createdAt: Micros
}

/** What clients call the filesystem as it is now. */
export const currentCheckpoint = 'Current'

export const checkpointIdPattern = /^(v|auto-)[1-9]\d{0,8}$/

/** Each is a copy of what was written in the sandbox. */
export const maxCheckpoints = 100

/** Restores in a row would fill the disk with what they replaced. */
export const keptAutomatic = 5

const maxCommentLength = 1024

export const CreateCheckpoint = Type.Object({
  comment: Type.Optional(Type.String({ maxLength: maxCommentLength, description: 'What it is for.' })),
})

export const CheckpointView = Type.Object(
  {
    id: Type.String(),
    create_time: Type.String({ format: 'date-time' }),
    comment: Type.Optional(Type.String()),
    source_id: Type.Optional(Type.String({ description: 'The checkpoint that the filesystem came from.' })),
    history: Type.Array(Type.String(), { description: 'That one, and the one that it came from, and so on.' }),
    is_auto: Type.Boolean({ description: 'Made by a restore, of what it replaced.' }),
    health: Type.String({ description: 'Empty when all is well.' }),
  },
  { title: 'Checkpoint' },
)

/** A line of the answer of an operation that takes its time. */
export const CheckpointEvent = Type.Object(
  {
    type: Type.Enum(['info', 'error', 'complete']),
    data: Type.Optional(Type.String()),
    error: Type.Optional(Type.String()),
    time: Type.String({ format: 'date-time' }),
  },
  { title: 'CheckpointEvent' },
)

/** The checkpoints that this one came from, the nearest first. Those that are gone end the line. */
export function historyOf(checkpoint: Pick<Checkpoint, 'sourceId'>, all: readonly Checkpoint[]): string[] {
  const line: string[] = []
  for (let id = checkpoint.sourceId; id !== null && !line.includes(id); ) {
    line.push(id)
    id = all.find((other) => other.id === id)?.sourceId ?? null
  }
  return line
}
