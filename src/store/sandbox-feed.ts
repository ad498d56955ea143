// Changes of sandboxes as they are committed, for streams that tell clients of them. All of a process share one
// connection, which is made for the first of them.
import type pg from 'pg'
import { type Listener, listen } from './listen.ts'

export interface SandboxChange {
  /** What changed: the sandbox itself, or a checkpoint of it. */
  what: 'sandbox' | 'checkpoint'
  sandboxId: string
}

export interface SandboxFeed {
  /** Calls back with each change, and with nothing when some may have gone unheard. Answers how to end it. */
  subscribe(heard: (change?: SandboxChange) => void): () => void
  close(): Promise<void>
}

const channel = 'sandbox_change'

export function sandboxFeed(config: () => pg.ClientConfig): SandboxFeed {
  const subscribers = new Set<(change?: SandboxChange) => void>()
  let listener: Listener | undefined
  return {
    subscribe(heard) {
      subscribers.add(heard)
      listener ??= listen(config(), channel, (payload) => {
        for (const subscriber of subscribers) subscriber(readChange(payload))
      })
      return () => subscribers.delete(heard)
    },
    close: async () => listener?.close(),
  }
}

function readChange(payload: string | undefined): SandboxChange | undefined {
  const [what, sandboxId] = payload?.split(' ') ?? []
  return sandboxId === undefined ? undefined : { what: what as SandboxChange['what'], sandboxId }
}
