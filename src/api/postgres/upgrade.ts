import { upgradeMajor } from '../../actions/postgres/upgrade.ts'
import { cancelPlannedUpgrade, upgradeMinor } from '../../live/postgres/upgrade.ts'
import { PostgresCluster } from '../../model/postgres/cluster.ts'
import { UpgradeRequest } from '../../model/postgres/upgrade.ts'
import { type Route, route } from '../http/route.ts'
import { ById, clusterView, Data, noCluster } from './cluster.ts'

export const upgradeRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/upgrade',
    id: 'upgradeCluster',
    tag: 'Postgres',
    summary: 'Upgrade PostgreSQL',
    description:
      'Restarts the cluster with the newest installed minor version, now or at a later time. With `pg_major_version`, a copy of the cluster is upgraded to that major version in a new cluster, which the response shows; the source is not changed. `upgrade` of the cluster reports the progress.',
    scope: 'write',
    params: ById,
    body: UpgradeRequest,
    status: 202,
    response: Data(PostgresCluster),
    errors: {
      404: noCluster,
      409: 'The cluster runs the newest installed minor version, an upgrade is in progress, or an import is.',
      422: 'The cluster is not ready, `at` is not a time in the future, `pg_major_version` is not a newer major version, the cluster has no backup to copy it from, or `name` is not valid or taken.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      const upgrade = body.pg_major_version?.trim() ? upgradeMajor : upgradeMinor
      return { data: clusterView(ctx.settings, await upgrade(ctx, params.postgres_cluster_id, body)) }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}/upgrade',
    id: 'cancelUpgrade',
    tag: 'Postgres',
    summary: 'Cancel a planned upgrade',
    scope: 'write',
    params: ById,
    status: 204,
    errors: {
      404: `${noCluster} Or: no upgrade is planned.`,
      409: 'The upgrade has begun.',
      422: 'The cluster is not ready.',
    },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => cancelPlannedUpgrade(ctx, params.postgres_cluster_id),
  }),
]
