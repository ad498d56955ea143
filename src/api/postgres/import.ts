import { Type } from 'typebox'
import { cancelImport, createImport, cutOverImport, findImport } from '../../actions/postgres/import.ts'
import { CreateImport, type Import, ImportView } from '../../model/postgres/import.ts'
import { toRfc3339 } from '../../model/time.ts'
import { type Route, route } from '../http/route.ts'
import { ById, Data, noCluster } from './cluster.ts'

const path = '/v1/postgres/{postgres_cluster_id}/import'
const noImport = `${noCluster.replace(/\.$/, '')}, or nothing was imported into it.`

export const importRoutes: Route[] = [
  route({
    method: 'POST',
    path,
    id: 'createImport',
    tag: 'Postgres',
    summary: 'Import a database from another PostgreSQL server',
    description:
      'Dumps the source and restores it into an empty database of the cluster, which is replaced when the copy is complete. With `live` the copy is then kept in sync until the cut-over.',
    scope: 'write',
    params: ById,
    body: CreateImport,
    status: 202,
    response: Data(ImportView),
    errors: {
      404: noCluster,
      409: 'An import is in progress, or an upgrade is.',
      422: 'A field is not valid, or the cluster is not ready.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => ({
      data: importView(await createImport(ctx, params.postgres_cluster_id, body)),
    }),
  }),
  route({
    method: 'GET',
    path,
    id: 'getImport',
    tag: 'Postgres',
    summary: 'Show the last import into a cluster',
    description: '`data` is null if nothing was imported.',
    scope: 'read',
    params: ById,
    status: 200,
    response: Data(Type.Union([ImportView, Type.Null()])),
    errors: { 404: noCluster },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const found = await findImport(ctx, params.postgres_cluster_id)
      return { data: found ? importView(found) : null }
    },
  }),
  route({
    method: 'POST',
    path: `${path}/cutover`,
    id: 'cutOverImport',
    tag: 'Postgres',
    summary: 'Complete a live import',
    description:
      'Stop all writers of the source first. Waits until the copy has everything, copies the values of sequences, removes the slot and the publication from the source, and replaces the database. If the source still writes after two minutes, the import stays `live`.',
    scope: 'write',
    params: ById,
    status: 202,
    response: Data(ImportView),
    errors: { 404: noImport, 409: 'The import is not `live`.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ data: importView(await cutOverImport(ctx, params.postgres_cluster_id)) }),
  }),
  route({
    method: 'DELETE',
    path,
    id: 'cancelImport',
    tag: 'Postgres',
    summary: 'Cancel an import',
    description: 'Removes the copy, and of a live import the slot and the publication at the source.',
    scope: 'write',
    params: ById,
    status: 202,
    response: Data(ImportView),
    errors: { 404: noImport, 409: 'The import is already over, or nearly so.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ data: importView(await cancelImport(ctx, params.postgres_cluster_id)) }),
  }),
]

function importView(row: Import & { progress: string | null }) {
  return {
    id: row.id,
    status: row.state,
    ...(row.progress ? { progress: row.progress } : {}),
    source: row.sourceName,
    database: row.database,
    live: row.live,
    jobs: row.jobs,
    tables_done: row.tablesDone,
    tables_total: row.tablesTotal,
    bytes_done: row.bytesDone,
    bytes_total: row.bytesTotal,
    current_table: row.tableName,
    lag_bytes: row.lagBytes,
    lag_seconds: row.lagSeconds,
    warnings: row.warnings,
    created_at: toRfc3339(row.createdAt),
    finished_at: row.finishedAt === null ? null : toRfc3339(row.finishedAt),
    ...(row.failure === null ? {} : { failure: row.failure }),
  }
}
