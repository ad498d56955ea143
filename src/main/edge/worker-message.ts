// The messages between the edge process and its workers. During an upgrade a running edge process starts workers of the
// new version, so existing messages must keep their form.

/** From the edge process to a worker. */
export type WorkerCommand =
  /** A client's connection, which comes as the handle. */
  | { connection: number }
  /** Accept no more connections, and exit when all are closed, within this time. */
  | { drainMillis: number }
  /** The reply to a request for a permit. */
  | { asked: number; granted: boolean }
  /** A permit for this target is free again. */
  | { freed: string }
  /** The reply to a request for a UDP socket at `address port`, which comes as the handle if it could be bound. */
  | { bound: string }

/** From a worker to the edge process. */
export type WorkerReport =
  /** The worker accepts connections. */
  | { ready: true }
  /** An error was not handled, so another worker should replace this one. */
  | { failed: true }
  /** The worker has received this connection. */
  | { taken: number }
  /** The TCP sockets that apps need, as `address port`. */
  | { listen: string[] }
  /** Requests a permit for a target with this limit. */
  | { ask: number; key: string; limit: number }
  /** Releases a permit. */
  | { release: string }
  /** Requests a UDP socket at `address port`. */
  | { bind: string }
