import { Type } from 'typebox'
import { adoptClusters, getAdoption } from '../../live/postgres/adopt.ts'
import type { Adoption } from '../../live/postgres/adopt-run.ts'
import { type Route, route } from '../http/route.ts'
import { Data } from './cluster.ts'

const PostgresAdoption = Type.Object(
  {
    status: Type.Enum(['running', 'done'], { description: '`done` when every cluster was looked at.' }),
    total: Type.Integer({ description: 'The number of clusters to adopt.' }),
    done: Type.Integer({ description: 'How many of them were looked at.' }),
    adopted: Type.Array(
      Type.Object({
        id: Type.String(),
        name: Type.String(),
        backups: Type.Integer({ description: 'The number of its backups.' }),
        windows: Type.Integer({ description: 'The number of intervals that can be restored.' }),
        problems: Type.Optional(
          Type.Array(Type.String(), { description: 'What is damaged or missing; absent if nothing is.' }),
        ),
      }),
    ),
    known: Type.Integer({ description: 'The number of clusters in the repository that the platform knew already.' }),
    unusable: Type.Array(Type.Object({ id: Type.String(), reason: Type.String() }), {
      description: 'What could not be adopted, and why.',
    }),
    error: Type.Optional(Type.String({ description: 'Why it ended early; it can be repeated.' })),
  },
  { title: 'PostgresAdoption' },
)

export const adoptRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/postgres/adopt',
    id: 'adoptClusters',
    targets: 'none', // only for tokens without appended caveats
    tag: 'Postgres',
    summary: 'Adopt clusters from the repository',
    description:
      'For a platform that lost its state: registers each cluster in the repository as deleted, so that it can be undeleted. It continues in the background if it takes long; poll `GET /v1/postgres/adopt` while its status is `running`. Requires a root token. The repository must not be in use by another platform. The operation can be repeated safely.',
    scope: 'write',
    body: Type.Object({
      org_slug: Type.Optional(
        Type.String({ description: 'The organization for all clusters; by default the one each belonged to.' }),
      ),
    }),
    status: 200,
    response: Data(PostgresAdoption),
    errors: { 404: 'The organization is unknown.', 422: 'A field is not valid.' },
    wrongTypeStatus: 422,
    run: async ({ ctx, body }) => ({ data: adoptionView(await adoptClusters(ctx, body.org_slug)) }),
  }),
  route({
    method: 'GET',
    path: '/v1/postgres/adopt',
    id: 'getAdoption',
    targets: 'none', // only for tokens without appended caveats
    tag: 'Postgres',
    summary: 'Show the progress of the newest adoption',
    description: 'Requires a root token.',
    scope: 'write',
    status: 200,
    response: Data(PostgresAdoption),
    errors: { 404: 'None was started since the control plane was.' },
    wrongTypeStatus: 422,
    run: async ({ ctx }) => ({ data: adoptionView(await getAdoption(ctx)) }),
  }),
]

function adoptionView({ isRunning, total, done, adopted, known, unusable, error }: Adoption) {
  return {
    status: isRunning ? 'running' : 'done',
    total,
    done,
    adopted: adopted.map(({ problems, ...rest }) => (problems.length === 0 ? rest : { ...rest, problems })),
    known,
    unusable,
    ...(error === null ? {} : { error }),
  }
}
