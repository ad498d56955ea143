import { BoxFileError, type BoxHelper, BoxUnavailable } from '../../drivers/box/driver.ts'
import { unavailable } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import { fileError } from '../../model/sandbox/file.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { acquireFileSlot } from './file-slot.ts'
import { wake } from './sandbox.ts'

export interface FileWork {
  helper: BoxHelper
  end(): void
}

/** Starts a file operation in the sandbox, which is started if necessary. The caller must call `end`. */
export async function startFileWork(ctx: LiveContext, asked: Sandbox, ...words: string[]): Promise<FileWork> {
  const sandbox = await wake(ctx, asked)
  const release = await acquireFileSlot(sandbox.id)
  try {
    const helper = ctx.boxes.startFileHelper(boxSpec(sandbox), ...words)
    const end = () => {
      helper.end()
      release()
    }
    return { helper, end }
  } catch (error) {
    release()
    throw error
  }
}

/** Turns an error of a helper into one of the API. */
export function fileApiError(error: unknown): unknown {
  if (error instanceof BoxFileError) return fileError(error.code, error.path, error.why)
  if (error instanceof BoxUnavailable) return unavailable(error.message)
  return error
}

export async function withFileErrors<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer
  } catch (error) {
    throw fileApiError(error)
  }
}
