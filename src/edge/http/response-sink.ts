/** Receives what an upstream sends, in one phase of a response. */
export interface ResponseSink {
  /** The client has received a part of the response, so an error can only be reported by closing the connection. */
  readonly isVisible: boolean
  /** Throws BadMessage when the response is malformed. */
  take(bytes: Buffer): void
  /** The upstream sends no more. Returns false if the response is incomplete. */
  end(): boolean
}
