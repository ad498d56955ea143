// Carries out the requests of the edge. This is not a step of the background loop: the loop looks only at resources in
// working states, and a sleeping sandbox or a stopped machine is in none.
import type { Db } from '../store/db.ts'
import { performEdgeRequest, takeEdgeRequests } from '../store/edge-request.ts'
import type { Listener } from '../store/listen.ts'

export interface EdgeRequestOptions {
  db: Db
  /** Subscribes to the notifications of new requests. */
  listen(onRequest: () => void): Listener
  onError(error: unknown): void
}

const pollMs = 1_000 // a broken connection loses notifications

export function startEdgeRequests({ db, listen, onError }: EdgeRequestOptions): { stop(): Promise<void> } {
  let running: Promise<void> | undefined
  let isStopped = false
  let isDue = false

  async function performAll(): Promise<void> {
    while (isDue && !isStopped) {
      isDue = false
      const requests = await takeEdgeRequests(db)
      await Promise.all(requests.map((request) => performEdgeRequest(db, request).catch(onError)))
    }
  }

  function wake(): void {
    isDue = true
    if (isStopped) return
    running ??= performAll()
      .catch(() => undefined) // the database is unavailable: the next poll retries
      .finally(() => {
        running = undefined
      })
  }

  const timer = setInterval(wake, pollMs)
  const listener = listen(wake)
  return {
    async stop() {
      isStopped = true
      clearInterval(timer)
      await listener.close()
      await running
    },
  }
}
