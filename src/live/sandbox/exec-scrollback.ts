import type { OutputStream } from '../../model/output-stream.ts'

interface Piece {
  stream: OutputStream
  data: Buffer
}

/** The newest output of a session, for clients that attach later. */
export class Scrollback {
  readonly #maxBytes: number
  #pieces: Piece[] = []
  #bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  add(stream: OutputStream, data: Buffer): void {
    const kept = data.length > this.#maxBytes ? data.subarray(data.length - this.#maxBytes) : data
    this.#pieces.push({ stream, data: kept })
    this.#bytes += kept.length
    this.#trim()
    // Many small buffers take far more memory than their bytes.
    if (this.#pieces.length > 1024) this.#pieces = this.read()
  }

  #trim(): void {
    let surplus = this.#bytes - this.#maxBytes
    let dropped = 0
    while (surplus > 0) {
      const oldest = this.#pieces[dropped]!
      if (oldest.data.length > surplus) {
        this.#pieces[dropped] = { stream: oldest.stream, data: oldest.data.subarray(surplus) }
        this.#bytes -= surplus
        break
      }
      surplus -= oldest.data.length
      this.#bytes -= oldest.data.length
      dropped += 1
    }
    if (dropped > 0) this.#pieces.splice(0, dropped)
  }

  /** Joins consecutive pieces of one stream. */
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
