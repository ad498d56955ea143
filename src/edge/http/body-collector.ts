import { type BodyReader, bodyReader } from './body.ts'
import { type ResponseHead, untilClose } from './message.ts'
import type { ResponseSink } from './response-sink.ts'

export interface BodyCollectorOptions {
  maxBytes: number
  onComplete(body: Buffer): void
  onTooLarge(): void
}

/** Reads the body of a response that is not forwarded to the client. */
export class BodyCollector implements ResponseSink {
  readonly isVisible = false
  private readonly options: BodyCollectorOptions
  private readonly reader: BodyReader
  private readonly endsWithConnection: boolean
  private readonly pieces: Buffer[] = []
  private bytes = 0

  constructor({ body }: ResponseHead, options: BodyCollectorOptions) {
    this.options = options
    this.reader = bodyReader(body)
    this.endsWithConnection = body === untilClose
  }

  take(chunk: Buffer): void {
    this.reader.take(chunk, (piece) => {
      this.bytes += piece.length
      if (this.bytes <= this.options.maxBytes) this.pieces.push(piece)
    })
    if (this.bytes > this.options.maxBytes) this.options.onTooLarge()
    else if (this.reader.done) this.complete()
  }

  end(): boolean {
    if (this.endsWithConnection) this.complete()
    return this.endsWithConnection
  }

  private complete(): void {
    this.options.onComplete(Buffer.concat(this.pieces))
  }
}
