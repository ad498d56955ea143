import type { SandboxChange, SandboxFeed } from '../../store/sandbox/feed.ts'

export interface Heard {
  /** Some changes may have gone unheard: look at everything. */
  missed: boolean
  /** Of the sandboxes that changed. */
  ids: string[]
}

export interface Inbox {
  /** What was heard since the last call; when that is nothing, waits for the first change or for this long. */
  next(millis: number): Promise<Heard>
  close(): void
}

/** Collects changes for one stream, each sandbox once however often it changed. Ends its waits when the client has gone. */
export function openInbox(feed: SandboxFeed, wants: (change: SandboxChange) => boolean, gone: AbortSignal): Inbox {
  const ids = new Set<string>()
  let missed = false
  let ring = () => {}
  const unsubscribe = feed.subscribe((change) => {
    if (change === undefined) missed = true
    else if (wants(change)) ids.add(change.sandboxId)
    else return
    ring()
  })
  gone.addEventListener('abort', () => ring())
  return {
    close: unsubscribe,
    async next(millis) {
      if (!missed && ids.size === 0 && !gone.aborted) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, millis)
          ring = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      }
      const heard = { missed, ids: [...ids] }
      missed = false
      ids.clear()
      return heard
    },
  }
}
