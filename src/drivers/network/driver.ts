export interface LocalSocket {
  /** Waits for requests to finish and cuts off connections that stay open longer than two seconds. */
  close(): Promise<void>
}
