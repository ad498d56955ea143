// Hard limits that are too small to divide between workers. The parent process counts for all of them, and a worker asks
// it for a permit before each request.

export interface Permits {
  /** Resolves to false when `limit` permits for this target are in use. A permit is held until it is released. */
  acquire(key: string, limit: number): Promise<boolean>
  release(key: string): void
}

interface PermitCount<Worker> {
  held: Map<Worker, number>
  total: number
  /** Workers to notify when a permit is released. */
  refused: Set<Worker>
}

/** Counts the permits of all workers, in the parent process. */
export class PermitLedger<Worker> {
  private readonly counts = new Map<string, PermitCount<Worker>>()

  acquire(worker: Worker, key: string, limit: number): boolean {
    const count = this.counts.get(key) ?? { held: new Map<Worker, number>(), total: 0, refused: new Set<Worker>() }
    this.counts.set(key, count)
    if (count.total >= limit) {
      count.refused.add(worker)
      return false
    }
    count.total += 1
    count.held.set(worker, (count.held.get(worker) ?? 0) + 1)
    return true
  }

  /** Returns the workers to notify. */
  release(worker: Worker, key: string): Worker[] {
    const count = this.counts.get(key)
    const held = count?.held.get(worker) ?? 0
    if (!count || held === 0) return []
    count.total -= 1
    if (held === 1) count.held.delete(worker)
    else count.held.set(worker, held - 1)
    return this.takeRefused(key, count)
  }

  /** Releases everything that an ended worker held, and returns for each key the workers to notify. */
  releaseAll(worker: Worker): [key: string, refused: Worker[]][] {
    const released: [string, Worker[]][] = []
    for (const [key, count] of this.counts) {
      count.refused.delete(worker)
      const held = count.held.get(worker) ?? 0
      if (held === 0) continue
      count.total -= held
      count.held.delete(worker)
      released.push([key, this.takeRefused(key, count)])
    }
    return released
  }

  private takeRefused(key: string, count: PermitCount<Worker>): Worker[] {
    const refused = [...count.refused]
    count.refused.clear()
    if (count.total === 0) this.counts.delete(key)
    return refused
  }
}
