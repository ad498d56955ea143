import type { Static, TObject, TSchema } from 'typebox'
import type { Context } from '../actions/context.ts'

export interface Call<P, Q, B> {
  ctx: Context
  params: P
  query: Q
  body: B
}

/** An answer whose status is decided by the action; most routes return the body alone. */
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
  response?: TSchema
  /** The refusals of this operation beyond those every operation has: status → when. */
  errors: Readonly<Record<number, string>>
  /** The status for a field of the wrong type: 422 where the operation documents one, else 400. */
  wrongType: 400 | 422
  run(call: Call<unknown, unknown, unknown>): Promise<unknown>
}

type Input<S> = S extends TSchema ? Static<S> : Record<string, never>

interface TypedRoute<P extends TObject, Q extends TObject, B extends TObject>
  extends Omit<Route, 'params' | 'query' | 'body' | 'run'> {
  params?: P
  query?: Q
  body?: B
  run(call: Call<Input<P>, Input<Q>, Input<B>>): Promise<unknown>
}

/** Returns the record unchanged; the call exists so that `run` is typed by the schemas beside it. */
export function route<P extends TObject, Q extends TObject, B extends TObject>(record: TypedRoute<P, Q, B>): Route {
  return record as unknown as Route
}
