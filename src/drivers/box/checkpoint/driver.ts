import type { BoxSpec } from '../../../model/sandbox/box.ts'

export type CopyState = { is: 'running' } | { is: 'done' } | { is: 'failed'; reason: string }

export interface CheckpointDriver {
  /** Starts copying what the box has written, or reports the progress. Waits a moment for the copy to end. */
  makeCheckpoint(spec: BoxSpec, checkpoint: string): Promise<CopyState>
  /** Copies a checkpoint to be swapped in. `kept` is the name under which the current layers will be kept. */
  prepareRestore(spec: BoxSpec, from: string, kept: string): Promise<CopyState>
  /** Swaps the prepared copy in and keeps the former layers as a checkpoint. The box must be down. Repeatable. */
  swapLayers(spec: BoxSpec, kept: string): Promise<void>
  /** Removes an unfinished copy of this name and thaws processes that were frozen for it. */
  abandonCopy(spec: BoxSpec, checkpoint: string): Promise<void>
  removeCheckpoint(id: string, checkpoint: string): Promise<void>
  /** The bytes on disk that the box has written. */
  measureLayers(id: string): Promise<number>
  /** Removes the records of finished copy jobs. Not to be called while a copy is running. */
  tidy(spec: BoxSpec): Promise<void>
}
