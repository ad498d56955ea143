import type { LocalSocket } from '../../drivers/network/driver.ts'

export interface Sockets<T extends { id: string }> {
  /** Opens the socket unless it is open already or `close` was called. */
  ensure(box: T): Promise<void>
  has(id: string): boolean
  remove(id: string): Promise<void>
  /**
   * Opens and closes sockets to match the running boxes, of `ids` or all. Sockets opened while the list is read are kept,
   * because the list may be older.
   */
  refresh(ids: string[] | null): Promise<void>
  close(): Promise<void>
}

/** The control plane's sockets inside boxes, one per running box. */
export function openSockets<T extends { id: string }>(
  listRunning: (ids: string[] | null) => Promise<T[]>,
  listen: (box: T) => Promise<LocalSocket>,
): Sockets<T> {
  const open = new Map<string, Promise<LocalSocket>>()
  let isClosed = false

  async function ensure(box: T): Promise<void> {
    if (isClosed) return
    const opening = open.get(box.id) ?? listen(box)
    open.set(box.id, opening)
    try {
      await opening
    } catch (error) {
      if (open.get(box.id) === opening) open.delete(box.id)
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
    async refresh(ids) {
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
