import type { Static, TObject, TSchema } from 'typebox'
import type { LiveContext } from '../live/context.ts'

export interface Call<P, Q, B> {
  ctx: LiveContext
  params: P
  query: Q
  body: B
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

export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** As OpenAPI writes it, parameters in braces. */
  path: string
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
  otherStatus?: 200
  response?: TSchema
  /** The refusals of this operation beyond those every operation has: status → when. */
  errors: Readonly<Record<number, string>>
  /** The status for a field of the wrong type: 422 where the operation documents one, else 400. */
  wrongType: 400 | 422
  /** Refusals that come before those of the fields, such as an absent resource. */
  precheck?(call: Pick<Call<unknown, unknown, unknown>, 'ctx' | 'params'>): Promise<unknown>
  run(call: Call<unknown, unknown, unknown>): Promise<unknown>
}

type Input<S> = S extends TSchema ? Static<S> : Record<string, never>

interface TypedRoute<P extends TObject, Q extends TObject, B extends TObject>
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
