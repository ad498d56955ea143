// Routes that flyctl uses besides the documented interface. They are views of the same actions with other names and
// formats.
import { type TObject, Type } from 'typebox'
import type { BerthError } from '../../model/errors.ts'
import { problemBody } from '../http/problem.ts'
import { type Route, route, type TypedRoute } from '../http/route.ts'

export const InternalOrg = Type.Object({ org_slug: Type.String({ description: 'The slug of the organization.' }) })

/** flyctl tries the second family first, and accepts a cluster from it only with an `mpgd_cluster_id`. */
export const families = [
  { family: 'postgres', suffix: 'V1' },
  { family: 'postgresv2', suffix: 'V2' },
] as const

export const ById = Type.Object({ postgres_cluster_id: Type.String({ description: 'The id of the cluster.' }) })
export const noCluster = 'The cluster does not exist, is deleted, or is not visible to this token.'
export const notReady = 'A field is not valid, or the cluster is not ready.'

const InternalAnswer = Type.Object(
  { data: Type.Optional(Type.Unknown({ description: 'The resource, or a list of them, as flyctl reads it.' })) },
  { title: 'InternalAnswer', additionalProperties: true },
)

/** Builds a flyctl route; errors are repeated in `errors.detail`, where flyctl expects them. */
export function internalRoute<P extends TObject, Q extends TObject, B extends TObject>(
  record: Omit<TypedRoute<P, Q, B>, 'tag' | 'wrongTypeStatus' | 'problem'>,
): Route {
  return route({
    ...(record.status < 202 ? { response: InternalAnswer } : {}),
    ...record,
    tag: 'flyctl',
    wrongTypeStatus: 422,
    problem: internalProblem,
  } as TypedRoute<P, Q, B>)
}

function internalProblem(error: BerthError): object {
  return { ...problemBody('platform', error), errors: { detail: error.message } }
}
