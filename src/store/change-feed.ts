// Notifies subscribers of committed changes. Subscribers of a process share one connection per channel, which the first
// one opens.
import type pg from 'pg'
import { type Listener, listen } from './listen.ts'

export interface ChangeFeed<T> {
  /** Calls back with each change, and without one when some may have been missed. Returns a function that unsubscribes. */
  subscribe(onChange: (change?: T) => void): () => void
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
    subscribe(onChange) {
      subscribers.add(onChange)
      listener ??= listen(config(), channel, (payload) => {
        for (const subscriber of subscribers) subscriber(read(payload))
      })
      return () => subscribers.delete(onChange)
    },
    close: async () => listener?.close(),
  }
}
