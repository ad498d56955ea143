import { Type } from 'typebox'
import { adoptClusters } from '../../live/postgres/adopt.ts'
import { type Route, route } from '../http/route.ts'
import { Data } from './cluster.ts'

const Adoption = Type.Object(
  {
    adopted: Type.Array(
      Type.Object({
        id: Type.String(),
        name: Type.String(),
        backups: Type.Integer({ description: 'The number of its backups.' }),
        windows: Type.Integer({ description: 'The number of intervals that can be restored.' }),
      }),
    ),
    known: Type.Integer({ description: 'The number of clusters in the repository that the platform knew already.' }),
    unusable: Type.Array(Type.Object({ id: Type.String(), reason: Type.String() }), {
      description: 'What could not be adopted, and why.',
    }),
  },
  { title: 'PostgresAdoption' },
)

export const adoptRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/postgres/adopt',
    id: 'adoptClusters',
    tag: 'Postgres',
    summary: 'Adopt clusters from the repository',
    description:
      'For a platform that lost its state: registers each cluster in the repository as deleted, so that it can be undeleted. Requires a root token. The repository must not be in use by another platform. The operation can be repeated safely.',
    scope: 'write',
    body: Type.Object({
      org_slug: Type.Optional(
        Type.String({ description: 'The organization for all clusters; by default the one each belonged to.' }),
      ),
    }),
    status: 200,
    response: Data(Adoption),
    errors: { 404: 'The organization is unknown.', 422: 'A field is not valid.' },
    wrongTypeStatus: 422,
    run: async ({ ctx, body }) => ({ data: await adoptClusters(ctx, body.org_slug) }),
  }),
]
