import { recoverCluster } from '../../actions/postgres/recover.ts'
import { discardDamagedData } from '../../live/postgres/recover.ts'
import { PostgresCluster } from '../../model/postgres/cluster.ts'
import { DiscardedData, RecoverRequest } from '../../model/postgres/recover.ts'
import { type Route, route } from '../http/route.ts'
import { ById, clusterView, Data, noCluster } from './cluster.ts'

export const recoverRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/recover',
    id: 'recoverCluster',
    tag: 'Postgres',
    summary: 'Rebuild a cluster in place from its archive',
    description:
      'For a cluster whose files are lost or damaged. It is stopped, its data directory is kept aside, and the newest intact backup and all archived WAL after it are restored in its place, with the same id, endpoints, users and passwords. Commits that the archive does not have are lost. `restore` reports the progress; if the archive cannot be restored up to its end, nothing is changed and `restore.error` says why.',
    scope: 'write',
    params: ById,
    body: RecoverRequest,
    status: 202,
    response: Data(PostgresCluster),
    errors: {
      404: noCluster,
      409: 'The archive is damaged before its end, and `accept_loss` is not set.',
      422: 'A field is not valid, the cluster is not ready and did not fail after it was, or it has no backup.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      return { data: clusterView(ctx.settings, await recoverCluster(ctx, params.postgres_cluster_id, body)) }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}/recover',
    id: 'discardDamagedData',
    tag: 'Postgres',
    summary: 'Remove the damaged data directories that recoveries have kept',
    scope: 'write',
    params: ById,
    status: 200,
    response: Data(DiscardedData),
    errors: { 404: noCluster, 422: 'The cluster is not ready.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({
      data: { discarded: await discardDamagedData(ctx, params.postgres_cluster_id) },
    }),
  }),
]
