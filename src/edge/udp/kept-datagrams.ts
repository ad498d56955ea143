import type { ByteBudget } from '../types.ts'

const maxDatagrams = 8
const maxBytes = 65_536
/** The memory that a buffered datagram takes in addition to its bytes. */
const overheadBytes = 512

/** The first datagrams of a flow, which wait for a machine or may have to be sent to another one. */
export class KeptDatagrams {
  private readonly budget: ByteBudget
  private datagrams: Buffer[] = []

  constructor(budget: ByteBudget) {
    this.budget = budget
  }

  get isEmpty(): boolean {
    return this.datagrams.length === 0
  }

  all(): Iterable<Buffer> {
    return this.datagrams
  }

  /** Drops the datagram if there are too many. */
  add(bytes: Buffer): void {
    const { budget } = this
    const sum = this.datagrams.reduce((before, { length }) => before + length, bytes.length)
    if (this.datagrams.length >= maxDatagrams || sum > maxBytes || budget.usedBytes >= budget.maxBytes) return
    this.datagrams.push(bytes)
    budget.usedBytes += bytes.length + overheadBytes
  }

  clear(): void {
    for (const { length } of this.datagrams) this.budget.usedBytes -= length + overheadBytes
    this.datagrams = []
  }
}
