import { Type } from 'typebox'
import { createDrill, listDrillsOf } from '../../actions/postgres/drill.ts'
import { CreateDrill, type Drill, DrillView } from '../../model/postgres/drill.ts'
import { type Micros, toRfc3339 } from '../../model/time.ts'
import { type Route, route } from '../http/route.ts'
import { ById, Data, noCluster } from './cluster.ts'

export const drillRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/drills',
    id: 'listDrills',
    tag: 'Postgres',
    summary: 'List the restore drills of a cluster, newest first',
    scope: 'read',
    params: ById,
    status: 200,
    response: Data(Type.Array(DrillView)),
    errors: { 404: noCluster },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ data: (await listDrillsOf(ctx, params.postgres_cluster_id)).map(drillView) }),
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/drills',
    id: 'createDrill',
    tag: 'Postgres',
    summary: 'Start a restore drill',
    description:
      'Restores a random point of the recovery window into a temporary cluster without client access, reads every page, checks tables and indexes, runs the drill query, and deletes the cluster.',
    scope: 'write',
    params: ById,
    body: CreateDrill,
    status: 202,
    errors: {
      404: noCluster,
      409: 'A drill is in progress.',
      422: '`drill_query` is not valid, the cluster is not ready, or it has no backup yet.',
    },
    wrongTypeStatus: 422,
    run: ({ ctx, params, body }) => createDrill(ctx, params.postgres_cluster_id, body),
  }),
]

function drillView(drill: Drill & { progress: string | null }) {
  const time = (value: Micros | null) => (value === null ? null : toRfc3339(value))
  return {
    id: drill.id,
    status: drill.state,
    ...(drill.progress ? { progress: drill.progress } : {}),
    target: time(drill.target),
    created_at: toRfc3339(drill.createdAt),
    finished_at: time(drill.finishedAt),
    seconds: drill.seconds,
    result: drill.state === 'done' ? drill.result : null,
    ...(drill.answer === null ? {} : { answer: drill.answer }),
  }
}
