import { maxSandboxes, type SandboxCounts, type SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { findSandboxById, listSandboxes, type SandboxList } from '../../store/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { openInbox } from './inbox.ts'

export interface WatchFilter {
  prefix: string
  orgSlug: string | null
}

/** An event without a sandbox is a heartbeat. */
export interface WatchEvent {
  sandbox?: SandboxDetails
  isGone?: boolean
  counts: SandboxCounts
  orgSlug: string | null
}

/** Clients and proxies close connections that are silent for too long. */
const heartbeatMs = 15_000

/** Sends every sandbox that the token can see, then every change, until the client has gone or the token is invalid. */
export async function watchSandboxes(
  ctx: LiveContext,
  filter: WatchFilter,
  send: (event: WatchEvent) => void,
  gone: AbortSignal,
): Promise<void> {
  const inbox = openInbox(ctx.sandboxFeed, ({ what }) => what === 'sandbox', gone)
  const watch = watcher(ctx, filter, send)
  try {
    let isValid = await watch.sendAll()
    while (isValid && !gone.aborted) {
      const { missed, ids } = await inbox.next(heartbeatMs)
      if (gone.aborted) return
      if (missed) isValid = await watch.sendAll()
      else if (ids.length > 0) isValid = await watch.sendChanged(ids)
      else isValid = await watch.sendHeartbeat()
    }
  } finally {
    inbox.close()
  }
}

/** Each method resolves to false when the token is no longer valid. */
function watcher(ctx: LiveContext, filter: WatchFilter, send: (event: WatchEvent) => void) {
  // The version of each sandbox that the client has, so that it gets each change once.
  const sent = new Map<string, string>()
  const list = (limit: number) => listSandboxes(ctx.db, ctx.tokenHash, { ...filter, after: '', limit })

  function sendOnce(sandbox: SandboxDetails, { counts, orgSlug }: SandboxList): void {
    const isGone = sandbox.state === 'deleting' || sandbox.state === 'deleted'
    const version = `${sandbox.state} ${sandbox.updatedAt}`
    // A sandbox that was created and deleted between two reads is not reported.
    if (isGone ? !sent.delete(sandbox.id) : sent.get(sandbox.id) === version) return
    if (!isGone) sent.set(sandbox.id, version)
    send({ sandbox, isGone, counts, orgSlug })
  }

  function isWatched({ name, orgSlug }: SandboxDetails): boolean {
    return name.startsWith(filter.prefix) && [null, orgSlug].includes(filter.orgSlug)
  }

  async function sendChanged(ids: string[]): Promise<boolean> {
    for (const id of ids) {
      const found = await findSandboxById(ctx.db, ctx.tokenHash, id)
      if (!found) return false
      const seen = found.sandbox && isWatched(found.sandbox) ? await list(0) : undefined
      if (seen) sendOnce(found.sandbox!, seen)
    }
    return true
  }

  return {
    sendChanged,
    async sendAll() {
      const seen = await list(maxSandboxes)
      if (!seen) return false
      for (const sandbox of seen.sandboxes) sendOnce(sandbox, seen)
      const present = new Set(seen.sandboxes.map((sandbox) => sandbox.id))
      return sendChanged([...sent.keys()].filter((id) => !present.has(id)))
    },
    async sendHeartbeat() {
      const seen = await list(0)
      if (seen) send({ counts: seen.counts, orgSlug: seen.orgSlug })
      return seen !== undefined
    },
  }
}
