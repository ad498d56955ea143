// Small hard limits hold for all workers together: each place at such a target is asked for at the process above them.

export interface Permits {
  /** Whether there is a place at this target, of at most `limit`. It is held until it is given back. */
  acquire(key: string, limit: number): Promise<boolean>
  release(key: string): void
}

interface Place<Worker> {
  held: Map<Worker, number>
  count: number
  /** Who was refused, and is to hear when there is a place. */
  refused: Set<Worker>
}

/** The book of it, kept for all workers. */
export class PermitBook<Worker> {
  private readonly places = new Map<string, Place<Worker>>()

  acquire(worker: Worker, key: string, limit: number): boolean {
    const place = this.places.get(key) ?? { held: new Map<Worker, number>(), count: 0, refused: new Set<Worker>() }
    this.places.set(key, place)
    if (place.count >= limit) {
      place.refused.add(worker)
      return false
    }
    place.count += 1
    place.held.set(worker, (place.held.get(worker) ?? 0) + 1)
    return true
  }

  /** Answers who is to hear of it. */
  release(worker: Worker, key: string): Worker[] {
    const place = this.places.get(key)
    const held = place?.held.get(worker) ?? 0
    if (!place || held === 0) return []
    place.count -= 1
    if (held === 1) place.held.delete(worker)
    else place.held.set(worker, held - 1)
    return this.settle(key, place)
  }

  /** It has ended, and what it held is free. */
  forget(worker: Worker): [key: string, refused: Worker[]][] {
    const told: [string, Worker[]][] = []
    for (const [key, place] of this.places) {
      place.refused.delete(worker)
      const held = place.held.get(worker) ?? 0
      if (held === 0) continue
      place.count -= held
      place.held.delete(worker)
      told.push([key, this.settle(key, place)])
    }
    return told
  }

  private settle(key: string, place: Place<Worker>): Worker[] {
    const refused = [...place.refused]
    place.refused.clear()
    if (place.count === 0) this.places.delete(key)
    return refused
  }
}
