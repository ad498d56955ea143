import { Type } from 'typebox'
import { createBackup, listBackupsOf, pinBackup } from '../../actions/postgres/backup.ts'
import { forkCluster, getSource, restoreCluster, undeleteCluster } from '../../actions/postgres/restore.ts'
import { checkLog } from '../../live/postgres/undelete.ts'
import { type Backup, BackupView, CreateBackup, PinBackup } from '../../model/postgres/backup.ts'
import { PostgresCluster } from '../../model/postgres/cluster.ts'
import { RestoreRequest } from '../../model/postgres/restore.ts'
import { type Micros, toRfc3339 } from '../../model/time.ts'
import { copiedCluster } from '../http/access.ts'
import { type Route, route } from '../http/route.ts'
import { ById, clusterView, Data, noCluster } from './cluster.ts'

const NewName = Type.Object({
  name: Type.Optional(Type.Union([Type.String(), Type.Null()], { description: 'Name of the new cluster.' })),
})

const Undelete = Type.Object({
  ...NewName.properties,
  accept_loss: Type.Optional(
    Type.Boolean({ description: 'Restore what is intact, if the WAL is damaged before its recorded end.' }),
  ),
})

export const backupRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/restore',
    id: 'restoreCluster',
    tag: 'Postgres',
    summary: 'Restore a backup or a point in time into a new cluster',
    description:
      'The source is not changed. The new cluster is provisioned in the background; its `restore` reports the progress.',
    scope: 'write',
    targets: copiedCluster,
    params: ById,
    body: RestoreRequest,
    status: 201,
    response: Data(PostgresCluster),
    errors: {
      400: 'The body is not a JSON object, or the restore failed: the backup is not completed or damaged.',
      404: `${noCluster} Or: it has no such backup.`,
      422: 'Neither or both of `backup_id` and `pitr_time` are given, the time is not valid, outside the recovery window or in a gap, point-in-time restore is unavailable, or `name` is not valid or taken.',
    },
    wrongTypeStatus: 422,
    precheck: ({ ctx, params }) => getSource(ctx, params.postgres_cluster_id),
    run: async ({ ctx, params, body }) => {
      return { data: clusterView(ctx.settings, await restoreCluster(ctx, params.postgres_cluster_id, body)) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/fork',
    id: 'forkCluster',
    tag: 'Postgres',
    summary: 'Copy the current state of a cluster into a new one',
    scope: 'write',
    targets: copiedCluster,
    params: ById,
    body: NewName,
    status: 201,
    response: Data(PostgresCluster),
    errors: { 404: noCluster, 422: 'The cluster is not ready or has no backup yet, or `name` is not valid or taken.' },
    wrongTypeStatus: 422,
    precheck: ({ ctx, params }) => getSource(ctx, params.postgres_cluster_id),
    run: async ({ ctx, params, body }) => {
      return { data: clusterView(ctx.settings, await forkCluster(ctx, params.postgres_cluster_id, body.name)) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/undelete',
    id: 'undeleteCluster',
    tag: 'Postgres',
    summary: 'Restore a deleted cluster into a new one',
    description:
      'Restores the last state from its backups and WAL, as long as they are kept. If the WAL is damaged before the end that was recorded of it, `accept_loss` restores what is intact; `restore.loss` then says what is missing.',
    scope: 'write',
    params: ById,
    body: Undelete,
    status: 201,
    response: Data(PostgresCluster),
    errors: {
      404: 'The cluster never existed.',
      409: 'The WAL is damaged before its recorded end; the message says where. `accept_loss` restores what is intact.',
      410: 'Its backups have been removed.',
      422: 'The cluster is not deleted or had no backup, or `name` is not valid or taken.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      const { name, accept_loss: acceptLoss = false } = body
      if (!acceptLoss) await checkLog(ctx, params.postgres_cluster_id)
      const cluster = await undeleteCluster(ctx, params.postgres_cluster_id, name, acceptLoss)
      return { data: clusterView(ctx.settings, cluster) }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/backups',
    id: 'listBackups',
    tag: 'Postgres',
    summary: 'List the backups of a cluster, newest first',
    scope: 'read',
    params: ById,
    status: 200,
    response: Data(Type.Array(BackupView)),
    errors: { 404: noCluster },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ data: (await listBackupsOf(ctx, params.postgres_cluster_id)).map(backupView) }),
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/backups',
    id: 'createBackup',
    tag: 'Postgres',
    summary: 'Take a backup now',
    scope: 'write',
    action: 'create',
    params: ById,
    body: CreateBackup,
    status: 202,
    errors: {
      404: noCluster,
      409: 'A backup is in progress.',
      422: '`type` is not valid, or the cluster is not ready.',
    },
    wrongTypeStatus: 422,
    run: ({ ctx, params }) => createBackup(ctx, params.postgres_cluster_id),
  }),
  route({
    method: 'PATCH',
    path: '/v1/postgres/{postgres_cluster_id}/backups/{backup_id}',
    id: 'pinBackup',
    tag: 'Postgres',
    summary: 'Pin or unpin a backup',
    description:
      'A pinned backup is not removed when it is older than the recovery window, and a deleted cluster is kept while one of its backups is pinned. Pinning does not extend the window: WAL is removed as usual.',
    scope: 'write',
    params: Type.Object({ ...ById.properties, backup_id: Type.String({ description: 'The label of the backup.' }) }),
    body: PinBackup,
    status: 200,
    response: Data(BackupView),
    errors: {
      404: 'The cluster never existed, or it has no such backup.',
      422: '`pinned` is missing or not valid, or the backup is not completed.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      return { data: backupView(await pinBackup(ctx, params.postgres_cluster_id, params.backup_id, body.pinned)) }
    },
  }),
]

function backupView(backup: Backup & { failure?: string | null }) {
  const time = (value: Micros | null) => (value === null ? null : toRfc3339(value))
  const failure = backup.failure ?? backup.damage
  return {
    id: backup.label,
    status: backup.state,
    type: 'full',
    size_bytes: backup.sizeBytes,
    started_at: time(backup.startedAt),
    finished_at: time(backup.finishedAt),
    verified_at: time(backup.verifiedAt),
    pinned: backup.pinned,
    ...(failure === null ? {} : { failure }),
  }
}
