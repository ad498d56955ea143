import { Type } from 'typebox'
import { getAuthority, readClusterLog } from '../../live/postgres/cluster.ts'
import { type Route, route } from '../http/route.ts'
import { ById, Data, noCluster } from './cluster.ts'

const defaultLines = 100

export const clusterLogRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/logs',
    id: 'getClusterLog',
    tag: 'Postgres',
    summary: 'Show the server log',
    description: 'The last lines, oldest first, each prefixed with its time in UTC. Works in every state.',
    scope: 'read',
    params: ById,
    query: Type.Object({
      lines: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: 1000,
          description: `The number of lines; ${defaultLines} when omitted.`,
          refusal: 'lines must be from 1 to 1000',
        }),
      ),
    }),
    status: 200,
    response: Data(Type.Object({ lines: Type.Array(Type.String()) }, { title: 'PostgresLog' })),
    errors: { 404: noCluster, 422: '`lines` is not a number from 1 to 1000.' },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, query }) => {
      return { data: { lines: await readClusterLog(ctx, params.postgres_cluster_id, query.lines ?? defaultLines) } }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/postgres/ca',
    id: 'getAuthority',
    tag: 'Postgres',
    summary: 'Show the certificate authority',
    description: 'Clients need it to verify the certificates of clusters. All clusters share it.',
    scope: 'read',
    targets: 'none',
    status: 200,
    response: Data(
      Type.Object({ certificate: Type.String({ description: 'PEM format.' }) }, { title: 'PostgresAuthority' }),
    ),
    errors: {},
    wrongTypeStatus: 400,
    run: async ({ ctx }) => ({ data: { certificate: await getAuthority(ctx) } }),
  }),
]
