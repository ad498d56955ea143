import { maxSandboxes, type SandboxCounts, type SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { findSandboxById, listSandboxes, type SandboxList } from '../../store/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { openInbox } from './inbox.ts'

export interface WatchFilter {
  prefix: string
  orgSlug: string | null
}

/** Without a sandbox when nothing changed and the client is told that we are still there. */
export interface WatchEvent {
  sandbox?: SandboxDetails
  isGone?: boolean
  counts: SandboxCounts
  orgSlug: string | null
}

/** Clients and the proxies between us take a silent connection for a dead one. */
const heartbeatMillis = 15_000

/**
 * Tells of each sandbox that the token sees, then of each change, until the client has gone or the token is not valid any
 * more. Nothing is looked at unless it changed.
 */
export async function watchSandboxes(
  ctx: LiveContext,
  filter: WatchFilter,
  tell: (event: WatchEvent) => void,
  gone: AbortSignal,
): Promise<void> {
  const inbox = openInbox(ctx.sandboxFeed, ({ what }) => what === 'sandbox', gone)
  const watch = watcher(ctx, filter, tell)
  try {
    let goesOn = await watch.tellAll()
    while (goesOn && !gone.aborted) {
      const { missed, ids } = await inbox.next(heartbeatMillis)
      if (gone.aborted) return
      if (missed) goesOn = await watch.tellAll()
      else if (ids.length > 0) goesOn = await watch.tellOf(ids)
      else goesOn = await watch.tellNothing()
    }
  } finally {
    inbox.close()
  }
}

/** Each function answers false when the token is not valid any more. */
function watcher(ctx: LiveContext, filter: WatchFilter, tell: (event: WatchEvent) => void) {
  // What the client knows, so that it is told of each change once.
  const told = new Map<string, string>()
  const list = (limit: number) => listSandboxes(ctx.db, ctx.tokenHash, { ...filter, after: '', limit })

  function tellOnce(sandbox: SandboxDetails, { counts, orgSlug }: SandboxList): void {
    const isGone = sandbox.state === 'deleting' || sandbox.state === 'deleted'
    const version = `${sandbox.state} ${sandbox.updatedAt}`
    // Of one that was made and deleted between two looks the client never heard.
    if (isGone ? !told.delete(sandbox.id) : told.get(sandbox.id) === version) return
    if (!isGone) told.set(sandbox.id, version)
    tell({ sandbox, isGone, counts, orgSlug })
  }

  function isWatched({ name, orgSlug }: SandboxDetails): boolean {
    return name.startsWith(filter.prefix) && [null, orgSlug].includes(filter.orgSlug)
  }

  async function tellOf(ids: string[]): Promise<boolean> {
    for (const id of ids) {
      const found = await findSandboxById(ctx.db, ctx.tokenHash, id)
      if (!found) return false
      const seen = found.sandbox && isWatched(found.sandbox) ? await list(0) : undefined
      if (seen) tellOnce(found.sandbox!, seen)
    }
    return true
  }

  return {
    tellOf,
    async tellAll() {
      const seen = await list(maxSandboxes)
      if (!seen) return false
      for (const sandbox of seen.sandboxes) tellOnce(sandbox, seen)
      const present = new Set(seen.sandboxes.map((sandbox) => sandbox.id))
      return tellOf([...told.keys()].filter((id) => !present.has(id)))
    },
    async tellNothing() {
      const seen = await list(0)
      if (seen) tell({ counts: seen.counts, orgSlug: seen.orgSlug })
      return seen !== undefined
    },
  }
}
