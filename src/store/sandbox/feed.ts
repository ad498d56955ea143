import type pg from 'pg'
import { type ChangeFeed, changeFeed } from '../change-feed.ts'

export interface SandboxChange {
  /** Whether the sandbox itself or one of its checkpoints changed. */
  what: 'sandbox' | 'checkpoint'
  sandboxId: string
}

export type SandboxFeed = ChangeFeed<SandboxChange>

export function sandboxFeed(config: () => pg.ClientConfig): SandboxFeed {
  return changeFeed(config, 'sandbox_change', (payload) => {
    const [what, sandboxId] = payload?.split(' ') ?? []
    return sandboxId === undefined ? undefined : { what: what as SandboxChange['what'], sandboxId }
  })
}
