// Changes as they are committed, for those who wait for them. All of a process share one connection for each kind, which
// is made for the first of them.
import type pg from 'pg'
import { type Listener, listen } from './listen.ts'

export interface ChangeFeed<T> {
  /** Calls back with each change, and with nothing when some may have gone unheard. Answers how to end it. */
  subscribe(heard: (change?: T) => void): () => void
  close(): Promise<void>
}

export function changeFeed<T>(
  config: () => pg.ClientConfig,
  channel: string,
  read: (payload: string | undefined) => T | undefined,
): ChangeFeed<T> {
  const subscribers = new Set<(change?: T) => void>()
  let listener: Listener | undefined
  return {
    subscribe(heard) {
      subscribers.add(heard)
      listener ??= listen(config(), channel, (payload) => {
        for (const subscriber of subscribers) subscriber(read(payload))
      })
      return () => subscribers.delete(heard)
    },
    close: async () => listener?.close(),
  }
}
