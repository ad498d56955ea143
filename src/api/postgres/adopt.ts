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
        backups: Type.Integer({ description: 'How many backups it has.' }),
        windows: Type.Integer({ description: 'How many intervals of it can be restored; with none it cannot.' }),
      }),
    ),
    known: Type.Integer({ description: 'How many clusters of the repository the platform knew before.' }),
    unusable: Type.Array(Type.Object({ id: Type.String(), reason: Type.String() }), {
      description: 'What is in the repository and cannot be adopted, and why.',
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
    summary: 'Take over clusters that only the repository knows',
    description:
      'For a platform whose state was lost: from the repository alone each cluster is written down as a deleted one, which can be undeleted. Needs a root token. The repository must not be in use by another platform. Repeating is harmless.',
    scope: 'write',
    body: Type.Object({
      org_slug: Type.Optional(
        Type.String({ description: 'Where they go; when omitted, each to the organization it belonged to.' }),
      ),
    }),
    status: 200,
    response: Data(Adoption),
    errors: { 404: 'The organization is unknown.', 422: 'A field is not valid.' },
    wrongTypeStatus: 422,
    run: async ({ ctx, body }) => ({ data: await adoptClusters(ctx, body.org_slug) }),
  }),
]
