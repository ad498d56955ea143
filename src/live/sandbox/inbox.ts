import type { SandboxChange, SandboxFeed } from '../../store/sandbox/feed.ts'

interface Changes {
  /** True when notifications may have been lost, so that everything must be read again. */
  missed: boolean
  /** The ids of sandboxes that changed. */
  ids: string[]
}

export interface Inbox {
  /** The changes since the last call. Waits for the first one if there are none, up to the timeout. */
  next(timeoutMs: number): Promise<Changes>
  close(): void
}

/** Collects the ids of changed sandboxes for one client. Stops waiting when the client has gone. */
export function openInbox(feed: SandboxFeed, wants: (change: SandboxChange) => boolean, gone: AbortSignal): Inbox {
  const ids = new Set<string>()
  let missed = false
  let wakeUp = () => {}
  const unsubscribe = feed.subscribe((change) => {
    if (change === undefined) missed = true
    else if (wants(change)) ids.add(change.sandboxId)
    else return
    wakeUp()
  })
  gone.addEventListener('abort', () => wakeUp())
  return {
    close: unsubscribe,
    async next(timeoutMs) {
      if (!missed && ids.size === 0 && !gone.aborted) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, timeoutMs)
          wakeUp = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      }
      const changes = { missed, ids: [...ids] }
      missed = false
      ids.clear()
      return changes
    },
  }
}
