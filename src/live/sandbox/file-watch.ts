import { startFileHelper } from '../../drivers/box/file/file.ts'
import { boxSpec } from '../../drivers/box/spec.ts'
import { badRequest, unavailable } from '../../model/errors.ts'
import { resolvePath } from '../../model/sandbox/file.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { asFileRefusal } from './file.ts'

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
 * Tells what happens to files until the signal says stop or the sandbox ends. `tell` answers when it can take more, so
 * that who does not read does not fill our memory; what happens meanwhile is then lost, which is told.
 */
export async function watchFiles(
  ctx: LiveContext,
  sandbox: Sandbox,
  command: WatchCommand,
  tell: (event: FileEvent) => Promise<void>,
  stopped: AbortSignal,
): Promise<void> {
  const { paths: asked, recursive, workingDir } = command
  if (asked.length === 0 || asked.length > maxPaths) throw badRequest(`paths must be 1 to ${maxPaths}`)
  const paths = asked.map((path) => resolvePath(path, workingDir, 'paths'))
  const others = watchers.get(sandbox.id) ?? 0
  if (others >= maxWatchers) throw unavailable(`there are ${maxWatchers} watchers of this sandbox already`)
  watchers.set(sandbox.id, others + 1)
  const helper = startFileHelper(ctx.boxes, boxSpec(sandbox), 'watch', recursive ? '1' : '', ...paths)
  const stop = () => helper.end()
  stopped.addEventListener('abort', stop)
  try {
    if (stopped.aborted) return
    await helper.next()
    await tell({ type: 'subscribed', paths })
    while (!stopped.aborted) {
      const words = await helper.next('forever')
      if (words[0] === 'done') throw unavailable('the sandbox has ended')
      const event = eventOf(words)
      if (event) await tell(event)
    }
  } catch (error) {
    if (!stopped.aborted) throw asFileRefusal(error)
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
