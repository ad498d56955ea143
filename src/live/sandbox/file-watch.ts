import { badRequest, unavailable } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import { resolvePath } from '../../model/sandbox/file.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { fileApiError } from './file-helper.ts'

export interface WatchCommand {
  paths: string[]
  recursive: boolean
  workingDir?: string
}

export type FileEvent =
  | { type: 'subscribed'; paths: string[] }
  | {
      type: 'event'
      path: string
      event: 'write' | 'create' | 'remove' | 'rename' | 'chmod'
      timestamp: string
      size: number
      isDir: boolean
    }
  | { type: 'error'; message: string }

const maxPaths = 256
const maxWatchers = 64
const watchers = new Map<string, number>()

/**
 * Sends events about files until `stopped` is aborted or the sandbox stops. `send` resolves when the client can take more,
 * so that a client that does not read cannot fill memory. Events that the kernel drops meanwhile are reported as an error.
 */
export async function watchFiles(
  ctx: LiveContext,
  sandbox: Sandbox,
  command: WatchCommand,
  send: (event: FileEvent) => Promise<void>,
  stopped: AbortSignal,
): Promise<void> {
  const { paths: asked, recursive, workingDir } = command
  if (asked.length === 0 || asked.length > maxPaths) throw badRequest(`paths must be 1 to ${maxPaths}`)
  const paths = asked.map((path) => resolvePath(path, workingDir, 'paths'))
  const others = watchers.get(sandbox.id) ?? 0
  if (others >= maxWatchers) throw unavailable(`there are ${maxWatchers} watchers of this sandbox already`)
  watchers.set(sandbox.id, others + 1)
  const helper = ctx.boxes.startFileHelper(boxSpec(sandbox), 'watch', recursive ? '1' : '', ...paths)
  const stop = () => helper.end()
  stopped.addEventListener('abort', stop)
  try {
    if (stopped.aborted) return
    await helper.next()
    await send({ type: 'subscribed', paths })
    while (!stopped.aborted) {
      const words = await helper.next('forever')
      if (words[0] === 'done') throw unavailable('the sandbox has ended')
      const event = eventOf(words)
      if (event) await send(event)
    }
  } catch (error) {
    if (!stopped.aborted) throw fileApiError(error)
  } finally {
    stopped.removeEventListener('abort', stop)
    helper.end()
    const left = watchers.get(sandbox.id)! - 1
    if (left > 0) watchers.set(sandbox.id, left)
    else watchers.delete(sandbox.id)
  }
}

type EventName = Extract<FileEvent, { type: 'event' }>['event']

function eventOf([kind, ...words]: string[]): FileEvent | undefined {
  if (kind === 'trouble') return { type: 'error', message: words[0]! }
  if (kind !== 'event') return undefined
  const [path, event, size, isDirectory] = words
  return {
    type: 'event',
    path: path!,
    event: event as EventName,
    timestamp: new Date().toISOString(),
    size: Number(size),
    isDir: isDirectory === '1',
  }
}
