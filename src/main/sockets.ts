import type { LocalSocket } from '../drivers/network/local-socket.ts'

export interface Sockets<T extends { id: string }> {
  /** Afterwards it listens, unless all are closed. */
  ensure(one: T): Promise<void>
  has(id: string): boolean
  remove(id: string): Promise<void>
  /** All, or those of `ids`. What is opened while the others are looked for is newer than the answer. */
  look(ids: string[] | null): Promise<void>
  close(): Promise<void>
}

/** Sockets inside of boxes, one for each that runs. */
export function openSockets<T extends { id: string }>(
  listRunning: (ids: string[] | null) => Promise<T[]>,
  listen: (one: T) => Promise<LocalSocket>,
): Sockets<T> {
  const open = new Map<string, Promise<LocalSocket>>()
  let isClosed = false

  async function ensure(one: T): Promise<void> {
    if (isClosed) return
    const opening = open.get(one.id) ?? listen(one)
    open.set(one.id, opening)
    try {
      await opening
    } catch (error) {
      if (open.get(one.id) === opening) open.delete(one.id)
      throw error
    }
  }

  async function remove(id: string): Promise<void> {
    const opened = open.get(id)
    open.delete(id)
    await (await opened)?.close()
  }

  return {
    ensure,
    has: (id) => open.has(id),
    remove,
    async look(ids) {
      const before = ids?.filter((id) => open.has(id)) ?? [...open.keys()]
      const running = await listRunning(ids)
      const wanted = new Set(running.map(({ id }) => id))
      await Promise.all([...running.map(ensure), ...before.filter((id) => !wanted.has(id)).map(remove)])
    },
    async close() {
      isClosed = true
      await Promise.all([...open.keys()].map(remove))
    },
  }
}
