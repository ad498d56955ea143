import type { Duplex } from 'node:stream'
import type { ResponseSink } from './response-sink.ts'

interface StreamClient {
  writeBody(bytes: Buffer, isChunked: boolean): boolean
  pause(): void
  end(): void
}

/** A connection after a 101 response: bytes are copied in both directions without being parsed. */
export class UpgradedStream implements ResponseSink {
  readonly isVisible = true
  private readonly client: StreamClient
  private readonly upstream: Duplex

  constructor(client: StreamClient, upstream: Duplex) {
    this.client = client
    this.upstream = upstream
  }

  take(bytes: Buffer): void {
    if (!this.client.writeBody(bytes, false)) this.upstream.pause()
  }

  end(): boolean {
    this.client.end()
    return true
  }

  takeFromClient(bytes: Buffer): void {
    if (!this.upstream.write(bytes)) this.client.pause()
  }

  endFromClient(): void {
    this.upstream.end()
  }
}
