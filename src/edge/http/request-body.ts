import type { Duplex } from 'node:stream'
import type { ByteBudget } from '../types.ts'
import { type BodyReader, bodyReader, writeBody } from './body.ts'
import { isRequestTrailer } from './forwarded-head.ts'
import type { RequestHead } from './message.ts'

/** Larger bodies are not kept for sending again. */
const maxCopyBytes = 1_048_576

/** A copy of what was sent of a request body, within a budget that all requests share. */
class BodyCopy {
  readonly pieces: Buffer[] = []
  private bytes = 0
  private readonly budget: ByteBudget

  constructor(budget: ByteBudget) {
    this.budget = budget
  }

  /** Returns false when the copy would become too large. */
  add(piece: Buffer): boolean {
    const { budget } = this
    if (this.bytes + piece.length > maxCopyBytes || budget.usedBytes + piece.length > budget.maxBytes) return false
    this.pieces.push(piece)
    this.bytes += piece.length
    budget.usedBytes += piece.length
    return true
  }

  free(): void {
    this.budget.usedBytes -= this.bytes
    this.bytes = 0
  }
}

/** The body of a request on its way from the client to an upstream. */
export class RequestBody {
  private readonly reader: BodyReader
  private readonly isEmpty: boolean
  private readonly isChunked: boolean
  private copy: BodyCopy | undefined

  constructor({ body }: Pick<RequestHead, 'body'>) {
    this.reader = bodyReader(body, isRequestTrailer)
    this.isEmpty = body === 0
    this.isChunked = body < 0
  }

  /** The client has sent all of it. */
  get isDone(): boolean {
    return this.reader.done
  }

  /** True if everything that was sent to an upstream can be sent to another one. */
  get canResend(): boolean {
    return this.isEmpty || this.copy !== undefined
  }

  /** Keeps a copy from now on, unless the announced length is too large. */
  keepCopy({ body }: Pick<RequestHead, 'body'>, budget: ByteBudget): void {
    if (body !== 0 && body <= maxCopyBytes) this.copy = new BodyCopy(budget)
  }

  freeCopy(): void {
    this.copy?.free()
    this.copy = undefined
  }

  /** Sends what an earlier upstream got already. */
  resend(socket: Duplex): void {
    if (this.copy) for (const piece of this.copy.pieces) writeBody(socket, this.isChunked, piece)
  }

  /** Forwards the part of `bytes` that belongs to the body. */
  forward(socket: Duplex, bytes: Buffer): { takenBytes: number; isBlocked: boolean } {
    let isBlocked = false
    socket.cork()
    const takenBytes = this.reader.take(bytes, (piece) => {
      if (!writeBody(socket, this.isChunked, piece)) isBlocked = true
      if (this.copy && !this.copy.add(piece)) this.freeCopy()
    })
    if (this.isDone) this.writeEnd(socket)
    socket.uncork()
    return { takenBytes, isBlocked }
  }

  writeEnd(socket: Duplex): void {
    if (this.isChunked) socket.write(`0\r\n${this.reader.trailer}\r\n`, 'latin1')
  }
}
