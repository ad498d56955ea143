import { once } from 'node:events'
import type { IncomingHttpHeaders, ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import type { Static, TObject, TSchema } from 'typebox'
import type { WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import type { BerthError } from '../../model/errors.ts'

export interface Call<P, Q, B> {
  ctx: LiveContext
  params: P
  query: Q
  body: B
  headers: IncomingHttpHeaders
  /** The query as it came, for parameters that are given several times. */
  search: URLSearchParams
}

const noSearch = new URLSearchParams()

/** Few requests have one, and to read it takes longer than most of the rest. */
export function readSearch(url: string): URLSearchParams {
  const start = url.indexOf('?')
  return start < 0 ? noSearch : new URLSearchParams(url.slice(start))
}

/** What `run` returns when it decides the status itself; most return the body alone. */
export class Answer {
  readonly status: number
  readonly body: unknown

  constructor(status: number, body: unknown) {
    this.status = status
    this.body = body
  }
}

/** An answer that is written piece by piece. What `write` throws cuts the connection, since the status is out already. */
export class StreamAnswer {
  readonly status: number
  readonly headers: Record<string, string>
  /** The signal is aborted when the client has gone. */
  readonly write: (out: ServerResponse, gone: AbortSignal) => Promise<void>

  constructor(status: number, headers: Record<string, string>, write: StreamAnswer['write']) {
    this.status = status
    this.headers = headers
    this.write = write
  }
}

/** Resolves when the client can take more; whoever has much to say waits for it, so that nothing piles up. */
export type Send = (...events: object[]) => Promise<void>

/** One JSON object a line, each sent at once. */
export function ndjson(write: (send: Send, gone: AbortSignal) => Promise<void>): StreamAnswer {
  const headers = {
    'content-type': 'application/x-ndjson',
    'cache-control': 'no-cache',
    'x-content-type-options': 'nosniff',
  }
  return new StreamAnswer(200, headers, async (out, gone) => {
    out.flushHeaders()
    await write(async (...events) => {
      if (gone.aborted || events.length === 0) return
      if (out.write(events.map((event) => `${JSON.stringify(event)}\n`).join(''))) return
      await once(out, 'drain', { signal: gone }).catch(() => undefined)
    }, gone)
  })
}

export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** As OpenAPI writes it, parameters in braces. */
  path: string
  /** Another path that clients know it by. */
  alias?: string
  id: string
  tag: string
  summary: string
  description?: string
  /** What is counted by the rate limit, and which tokens may call: `read` tokens only call `read` routes. */
  scope: 'read' | 'write'
  params?: TObject
  query?: TObject
  body?: TObject
  status: 200 | 201 | 202 | 204
  /** A second status of success, with the same body. */
  otherStatus?: 200 | 202
  response?: TSchema
  /** A field of the body that is null counts as absent: clients of typed languages send them. */
  nullsAbsent?: true
  /** The body is not JSON: `call.body` is the stream of its bytes, of any length. */
  rawBody?: true
  /** It may come without a token: what it is about is one in the body, or who asks is known otherwise. */
  mayLackToken?: true
  /** A machine may ask it about itself without a token: `app_name` and `machine_id` of its parameters are then its own. */
  forItself?: true
  /** The answer comes piece by piece, so that it cannot be kept for an `Idempotency-Key`. */
  streams?: true
  /**
   * What it changes is out in the world, where nothing is rolled back: with an `Idempotency-Key` as well, what it keeps is
   * kept at once, and no transaction is open while it waits.
   */
  outside?: true
  /** Of the answer, when it is not JSON. */
  contentType?: 'application/octet-stream' | 'application/x-ndjson' | 'text/plain'
  /** The refusals of this operation beyond those every operation has: status → when. */
  errors: Readonly<Record<number, string>>
  /** The status for a field of the wrong type: 422 where the operation documents one, else 400. */
  wrongType: 400 | 422
  /** The code for programs when it is asked for too often, where clients know one of its own. */
  rateLimited?: string
  /** The body of a refusal, where it is not the one of the address. */
  problem?(error: BerthError): object
  /** Refusals that come before those of the fields, such as an absent resource. */
  precheck?(call: Pick<Call<unknown, unknown, unknown>, 'ctx' | 'params'>): Promise<unknown>
  run(call: Call<unknown, unknown, unknown>): Promise<unknown>
}

/** A WebSocket. `open` refuses as a request is refused, before the connection is upgraded. */
export interface SocketRoute {
  path: string
  id: string
  tag: string
  summary: string
  open(call: Omit<Call<Record<string, string>, never, never>, 'query' | 'body'>): Promise<OpenSocket>
}

export interface OpenSocket {
  /** Sent with the answer that upgrades the connection. */
  headers?: Record<string, string>
  run(socket: WebSocket): void
}

/** The body of a route with `rawBody`. */
export type RawBody = Readable

type Input<S> = S extends TSchema ? Static<S> : Record<string, never>

export interface TypedRoute<P extends TObject, Q extends TObject, B extends TObject>
  extends Omit<Route, 'params' | 'query' | 'body' | 'run' | 'precheck'> {
  params?: P
  query?: Q
  body?: B
  precheck?(call: Pick<Call<Input<P>, Input<Q>, Input<B>>, 'ctx' | 'params'>): Promise<unknown>
  run(call: Call<Input<P>, Input<Q>, Input<B>>): Promise<unknown>
}

/** Returns the record unchanged; the call exists so that `run` is typed by the schemas beside it. */
export function route<P extends TObject, Q extends TObject, B extends TObject>(record: TypedRoute<P, Q, B>): Route {
  return record as unknown as Route
}
