import type { OutputStream } from '../../model/sandbox/exec.ts'

export interface Piece {
  stream: OutputStream
  data: Buffer
}

/** The newest output of a session, for those who attach later. What is older is forgotten. */
export class Scrollback {
  readonly #mostBytes: number
  #pieces: Piece[] = []
  #bytes = 0

  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes
  }

  add(stream: OutputStream, data: Buffer): void {
    const kept = data.length > this.#mostBytes ? data.subarray(data.length - this.#mostBytes) : data
    this.#pieces.push({ stream, data: kept })
    this.#bytes += kept.length
    this.#forget()
    // Small pieces each hold on to memory of their own; together they may hold far more than their bytes.
    if (this.#pieces.length > 1024) this.#pieces = this.read()
  }

  #forget(): void {
    let surplus = this.#bytes - this.#mostBytes
    let gone = 0
    while (surplus > 0) {
      const oldest = this.#pieces[gone]!
      if (oldest.data.length > surplus) {
        this.#pieces[gone] = { stream: oldest.stream, data: oldest.data.subarray(surplus) }
        this.#bytes -= surplus
        break
      }
      surplus -= oldest.data.length
      this.#bytes -= oldest.data.length
      gone += 1
    }
    if (gone > 0) this.#pieces.splice(0, gone)
  }

  /** Neighbours of one stream come as one piece. */
  read(): Piece[] {
    const runs: { stream: OutputStream; parts: Buffer[] }[] = []
    for (const { stream, data } of this.#pieces) {
      const last = runs.at(-1)
      if (last?.stream === stream) last.parts.push(data)
      else runs.push({ stream, parts: [data] })
    }
    return runs.map(({ stream, parts }) => ({ stream, data: Buffer.concat(parts) }))
  }
}
