import { once } from 'node:events'
import type { IncomingHttpHeaders, ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import type { Static, TObject, TSchema } from 'typebox'
import type { WebSocket } from 'ws'
import type { Target } from '../../actions/account/access.ts'
import type { Credential } from '../../actions/account/credential.ts'
import type { LiveContext } from '../../live/context.ts'
import type { action } from '../../model/account/access.ts'
import type { BerthError } from '../../model/errors.ts'

export interface Call<P, Q, B> {
  ctx: LiveContext
  params: P
  query: Q
  body: B
  headers: IncomingHttpHeaders
  /** The unparsed query, for parameters that may be repeated. */
  search: URLSearchParams
  /** All tokens of the request; that of the context is the first of them that permits the operation. */
  credentials: readonly Credential[]
}

/** What can be read before the fields of a request are validated. */
export type UncheckedCall = Pick<Call<Record<string, string>, unknown, unknown>, 'params' | 'query' | 'body'>

const noSearch = new URLSearchParams()

/** Skips parsing when there is no query: few requests have one, and parsing is slow. */
export function readSearch(url: string): URLSearchParams {
  const start = url.indexOf('?')
  return start < 0 ? noSearch : new URLSearchParams(url.slice(start))
}

/** Returned by `run` when it chooses the status itself; most routes return only the body. */
export class Answer {
  readonly status: number
  readonly body: unknown

  constructor(status: number, body: unknown) {
    this.status = status
    this.body = body
  }
}

/** A streamed response. When `write` throws, the connection is closed, because the status has been sent already. */
export class StreamAnswer {
  readonly status: number
  readonly headers: Record<string, string>
  /** The signal is aborted when the client disconnects. */
  readonly write: (out: ServerResponse, disconnected: AbortSignal) => Promise<void>

  constructor(status: number, headers: Record<string, string>, write: StreamAnswer['write']) {
    this.status = status
    this.headers = headers
    this.write = write
  }
}

/** Resolves when the client can take more. Callers that send a lot wait for it, so that output is not buffered. */
export type Send = (...events: object[]) => Promise<void>

/** Streams one JSON object per line, each sent immediately. */
export function ndjson(write: (send: Send, disconnected: AbortSignal) => Promise<void>): StreamAnswer {
  const headers = {
    'content-type': 'application/x-ndjson',
    'cache-control': 'no-cache',
    'x-content-type-options': 'nosniff',
  }
  return new StreamAnswer(200, headers, async (out, disconnected) => {
    out.flushHeaders()
    await write(async (...events) => {
      if (disconnected.aborted || events.length === 0) return
      if (out.write(events.map((event) => `${JSON.stringify(event)}\n`).join(''))) return
      await once(out, 'drain', { signal: disconnected }).catch(() => undefined)
    }, disconnected)
  })
}

export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** The path in OpenAPI notation, with parameters in braces. */
  path: string
  /** Another path of the same operation, for compatibility with existing clients. */
  alias?: string
  id: string
  tag: string
  summary: string
  description?: string
  /** Selects the rate limit and the tokens that may call it: `read` tokens may only call `read` routes. */
  scope: 'read' | 'write'
  /** The action that a caveat has to permit, if the method does not tell: a POST requires all actions. */
  action?: Exclude<keyof typeof action, 'all'>
  /**
   * The resources that the caveats of a token have to permit, if the parameters of the path do not tell. `none`: it concerns no
   * resource, or checks each one itself. The body may be invalid.
   */
  targets?: 'none' | ((call: UncheckedCall) => Target[])
  params?: TObject
  query?: TObject
  /** The request headers that it reads, for the documentation. They are not validated. */
  headers?: TObject
  body?: TObject
  status: 200 | 201 | 202 | 204
  /** A second success status, with the same body. */
  otherStatus?: 200 | 202 | 206
  /** The headers of a successful response beside the ones that every response has: name → description. */
  responseHeaders?: Readonly<Record<string, string>>
  response?: TSchema | undefined
  /** Treats null fields of the body as absent: clients in typed languages send them. */
  ignoreNulls?: true
  /** The body is not JSON: `call.body` is the stream of its bytes, of any length. */
  rawBody?: true
  /** The token may be missing: the body contains one, or the caller is identified in another way. */
  tokenOptional?: true
  /** A machine may call it without a token when `app_name` and `machine_id` are its own. */
  machineSelf?: true
  /** The request can take long by itself, so that it counts as an open connection of the organization. */
  waits?: true
  /** The response is streamed, so it cannot be stored for an `Idempotency-Key`. */
  streams?: true
  /**
   * It changes something that a transaction cannot roll back, such as a user of a cluster. So, even with an
   * `Idempotency-Key`, its rows are committed at once and no transaction is open while it runs.
   */
  outsideTransaction?: true
  /** The content type of the response, when it is not JSON. */
  contentType?: 'application/octet-stream' | 'application/x-ndjson' | 'text/plain'
  /** The schema of a line, when a client can ask for a stream of lines with `Accept: application/x-ndjson`. */
  lines?: TSchema
  /** The errors of this operation beyond those that every operation has: status → cause. */
  errors: Readonly<Record<number, string>>
  /** The status for a field of the wrong type: 422 where the operation documents one, else 400. */
  wrongTypeStatus: 400 | 422
  /** The error code of a 429, where clients expect a specific one. */
  rateLimitCode?: string
  /** Renders the body of an error, where it differs from the format of the listener. */
  problem?(error: BerthError): object
  /** Checks that come before the validation of fields, such as whether the resource exists. */
  precheck?(call: Pick<Call<unknown, unknown, unknown>, 'ctx' | 'params'>): Promise<unknown>
  run(call: Call<unknown, unknown, unknown>): Promise<unknown>
}

/** Adds the path under which existing clients know a route: `/v1/sprites` for sandboxes, or its own alias. */
export function withAliases<R extends { path: string; alias?: string }>(route: R): R[] {
  const alias = route.alias ?? route.path.replace(/^\/v1\/sandboxes(?=\/|$)/, '/v1/sprites')
  return alias === route.path ? [route] : [route, { ...route, path: alias }]
}

/** A WebSocket. Errors thrown by `open` are sent as an HTTP response before the connection is upgraded. */
export interface SocketRoute {
  path: string
  id: string
  tag: string
  summary: string
  /** Nothing that the client sends does more than this; `control` when omitted. */
  action?: 'read'
  /** What it concerns, if that does not follow from the path. */
  targets?: (call: { params: Record<string, string>; search: URLSearchParams }) => Target[]
  open(call: Omit<Call<Record<string, string>, never, never>, 'query' | 'body'>): Promise<OpenSocket>
}

export interface OpenSocket {
  /** Headers of the response that upgrades the connection. */
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

/** Returns the record unchanged; it types the arguments of `run` by the schemas of the record. */
export function route<P extends TObject, Q extends TObject, B extends TObject>(record: TypedRoute<P, Q, B>): Route {
  return record as unknown as Route
}
