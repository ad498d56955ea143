import type { Duplex } from 'node:stream'
import { BadMessage, chunked, readFields, untilClose } from './message.ts'

/** Finds the end of a body in the bytes of a connection, and passes its contents on. */
export interface BodyReader {
  done: boolean
  /** Returns how many bytes belong to the body. Throws if it is malformed, without passing on any of the piece. */
  take(piece: Buffer, sink: (bytes: Buffer) => void): number
  /** The trailer fields of a chunked body, each with its line end. */
  trailer: string
}

/** `keepsTrailer` decides which trailer fields are passed on, by their names in lowercase. */
export function bodyReader(body: number, keepsTrailer: (name: string) => boolean = isResponseTrailer): BodyReader {
  if (body === chunked) return new ChunkedReader(keepsTrailer)
  return new LengthReader(body === untilClose ? Number.POSITIVE_INFINITY : body)
}

class LengthReader implements BodyReader {
  done: boolean
  trailer = ''
  private left: number

  constructor(length: number) {
    this.left = length
    this.done = length === 0
  }

  take(piece: Buffer, sink: (bytes: Buffer) => void): number {
    const taken = Math.min(this.left, piece.length)
    this.left -= taken
    this.done = this.left === 0
    if (taken > 0) sink(taken === piece.length ? piece : piece.subarray(0, taken))
    return taken
  }
}

// Size lines and trailers are short; longer ones would be an attempt to use up memory.
const maxLineBytes = 256
const maxTrailerBytes = 8192
const sizeLine = /^([0-9a-fA-F]{1,13})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?$/
const carriageReturn = 13
const lineFeed = 10

class ChunkedReader implements BodyReader {
  done = false
  trailer = ''
  private part: 'size' | 'data' | 'data-end' | 'trailer' = 'size'
  private left = 0
  private line = ''
  private trailerBytes = 0
  private readonly keepsTrailer: (name: string) => boolean

  constructor(keepsTrailer: (name: string) => boolean) {
    this.keepsTrailer = keepsTrailer
  }

  take(piece: Buffer, sink: (bytes: Buffer) => void): number {
    const found: Buffer[] = []
    let at = 0
    while (at < piece.length && !this.done) {
      if (this.part === 'data') {
        const end = Math.min(piece.length, at + this.left)
        found.push(piece.subarray(at, end))
        this.left -= end - at
        at = end
        if (this.left === 0) this.part = 'data-end'
      } else at = this.takeLine(piece, at)
    }
    for (const bytes of found) sink(bytes)
    return at
  }

  private takeLine(piece: Buffer, from: number): number {
    const end = piece.indexOf(lineFeed, from)
    const stop = end < 0 ? piece.length : end
    if (this.line.length + stop - from > (this.part === 'trailer' ? maxTrailerBytes : maxLineBytes)) {
      throw new BadMessage('a line of the chunked body is too long')
    }
    this.line += piece.toString('latin1', from, stop)
    if (end < 0) return piece.length
    if (this.line.charCodeAt(this.line.length - 1) !== carriageReturn)
      throw new BadMessage('the chunked body is malformed')
    const line = this.line.slice(0, -1)
    this.line = ''
    this.endLine(line)
    return end + 1
  }

  private endLine(line: string): void {
    if (this.part === 'data-end') {
      if (line !== '') throw new BadMessage('the chunked body is malformed')
      this.part = 'size'
    } else if (this.part === 'size') {
      const size = sizeLine.exec(line)
      if (!size) throw new BadMessage('the chunked body is malformed')
      this.left = Number.parseInt(size[1]!, 16)
      this.part = this.left === 0 ? 'trailer' : 'data'
    } else if (line === '') this.done = true
    else this.endTrailer(line)
  }

  private endTrailer(line: string): void {
    this.trailerBytes += line.length
    if (this.trailerBytes > maxTrailerBytes) throw new BadMessage('the trailer is too long', 431)
    const [name, lower, value] = readFields([line], 0)
    if (this.keepsTrailer(lower!)) this.trailer += `${name}: ${value}\r\n`
  }
}

/** Some receivers merge trailers into the head, so fields with a meaning for framing or security are dropped. */
function isResponseTrailer(name: string): boolean {
  return !/^(?:content-length|transfer-encoding|connection|host|set-cookie|authorization)$/.test(name)
}

/** Up to this size, copying into one buffer is cheaper than writing several. */
export const smallBytes = 4096

/** Writes a piece of a body. Chunks are re-encoded, so that unusual encodings are not forwarded. */
export function writeBody(socket: Pick<Duplex, 'write'>, isChunked: boolean, bytes: Buffer): boolean {
  if (!isChunked) return socket.write(bytes)
  const size = bytes.length.toString(16)
  if (bytes.length <= smallBytes) return socket.write(`${size}\r\n${bytes.toString('latin1')}\r\n`, 'latin1')
  socket.write(`${size}\r\n`, 'latin1')
  socket.write(bytes)
  return socket.write('\r\n', 'latin1')
}
