/** Counts the users of keys, of which there can be several at once. */
export function usageCount() {
  const counts = new Map<string, number>()
  function change(keys: string[], by: number): void {
    for (const key of keys) {
      const count = (counts.get(key) ?? 0) + by
      if (count > 0) counts.set(key, count)
      else counts.delete(key)
    }
  }
  return {
    has: (key: string) => counts.has(key),
    /** Counts the keys as used while the work runs. */
    async during<T>(keys: string[], work: () => Promise<T>): Promise<T> {
      change(keys, 1)
      try {
        return await work()
      } finally {
        change(keys, -1)
      }
    },
  }
}
