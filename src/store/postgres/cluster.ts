import { requireCaller } from '../../model/account/caller.ts'
import type { Caller } from '../../model/account/token.ts'
import { notFound } from '../../model/errors.ts'
import {
  type Cluster,
  type ClusterDetails,
  type CreateCluster,
  clusterIdPattern,
  clusterStatus,
  type Health,
  type PostgresMajor,
  type RecordedToolchain,
} from '../../model/postgres/cluster.ts'
import { callerColumns, callerCte, callerOf, callersCte } from '../account/token.ts'
import { byPosition } from '../batch.ts'
import type { Db, Query, Tx } from '../db.ts'
import { enqueue } from '../work.ts'
import { passesColumn } from './stretch.ts'

const columns = `cluster.id, cluster.org_id as "clusterOrgId", cluster.name, cluster.state,
  cluster.state_since as "stateSince", cluster.progress_at as "progressAt", cluster.plan, cluster.pg_major as "pgMajor",
  cluster.disk_size_gb as "diskSizeGb", cluster.replicas, cluster.region, cluster.postgis_enabled as "postgisEnabled", cluster.extensions,
  cluster.pool_mode as "poolMode", cluster.created_at as "createdAt", cluster.deleted_at as "deletedAt",
  cluster.toolchain, cluster.uid, cluster.health, cluster.health_reason as "healthReason",
  cluster.health_since as "healthSince", cluster.storage_provisioned_bytes as "storageProvisionedBytes",
  cluster.storage_used_bytes as "storageUsedBytes", cluster.storage_measured_at as "storageMeasuredAt",
  cluster.quota_checked_at as "quotaCheckedAt", cluster.synchronous_archive as "synchronousArchive",
  cluster.drill_query as "drillQuery", cluster.retention_days as "retentionDays", cluster.scratch, cluster.subscribes,
  cluster.maintenance_window as "maintenanceWindow", cluster.newest_version as "newestVersion",
  cluster.retention_at as "retentionAt",
  cluster.undescribed_since as "undescribedSince",
  cluster.direct_port as "directPort", cluster.pooler_port as "poolerPort"`

/** The fields that the API shows, selected as one JSON column because parsing thirty columns costs the client more than the statement costs the server. */
const details = `cluster.id, cluster.name, cluster.state, cluster.plan, cluster.pg_major as "pgMajor",
  cluster.disk_size_gb as "diskSizeGb", cluster.replicas, cluster.region, cluster.postgis_enabled as "postgisEnabled", cluster.extensions,
  cluster.pool_mode as "poolMode", cluster.retention_days as "retentionDays",
  cluster.maintenance_window as "maintenanceWindow",
  cluster.created_at as "createdAt", cluster.deleted_at as "deletedAt", cluster.health, cluster.health_reason as "healthReason", cluster.health_since as "healthSince",
  cluster.storage_provisioned_bytes as "storageProvisionedBytes", cluster.storage_used_bytes as "storageUsedBytes",
  cluster.direct_port as "directPort", cluster.pooler_port as "poolerPort",
  cluster.toolchain ->> 'version' as "pgVersion", cluster.newest_version as "newestVersion",
  org.name as "orgName", org.slug as "orgSlug", org.numeric_id as "orgNumericId", ${passesColumn}`

/** Whether `extras` may return anything. Most clusters have none, and planning that query takes as long as a read. */
const hasExtras = `(attached or restored or drilled or upgraded or cluster.state = 'failed') as "hasExtras"`

const extras = `array(
    select app.name from attachment join app on app.id = attachment.app_id
    where cluster_id = cluster.id and app.state = 'active' order by app.name) as "attachedApps",
  case when cluster.state = 'failed' then (
    select note from event where kind = 'cluster' and resource_id = cluster.id and to_state = 'failed'
    order by id desc limit 1) end as failure,
  (select json_build_object('source_cluster_id', source_cluster_id, 'backup_id', backup_id, 'pitr_time', pitr_time,
     'phase', phase, 'bytes_done', bytes_done, 'bytes_total', bytes_total, 'replayed_until', replayed_until,
     'verified_at', verified_at, 'failure', failure, 'loss', loss) from restore where restore.cluster_id = cluster.id) as restore,
  (select json_build_object('at', finished_at, 'target', target, 'seconds', seconds, 'result', result, 'answer', answer)
   from drill where drill.cluster_id = cluster.id and drill.state = 'done'
   order by finished_at desc limit 1) as "lastDrill",
  (select json_build_object('kind', kind, 'phase', phase, 'from', from_version, 'to', to_version, 'planned_at', planned_at,
     'started_at', started_at, 'finished_at', finished_at, 'error', error)
   from upgrade where upgrade.cluster_id = cluster.id) as upgrade`

type Extras = Pick<ClusterDetails, 'attachedApps' | 'failure' | 'restore' | 'lastDrill' | 'upgrade'>
const noExtras: Extras = { attachedApps: [], failure: null, restore: null, lastDrill: null, upgrade: null }

type Row<T> = { [K in keyof T]: T[K] | null } & { clusterOrgId: string | null }

/** Clusters of other organizations and scratch clusters are not visible. */
const visible = `(token_org is null or token_org = cluster.org_id) and not scratch`

/** Invalid ids must not reach the database, which rejects NUL bytes with an error. */
function idOrNone(id: string): string {
  return clusterIdPattern.test(id) ? id : ''
}

export interface VisibleCluster {
  caller: Caller
  cluster: Cluster
}

/** Throws unless the token is valid and may see the cluster. Deleted clusters are found only on request. */
export async function getVisibleCluster(
  db: Db,
  tokenHash: Buffer,
  id: string,
  options = { deleted: false },
): Promise<VisibleCluster> {
  const [row] = await db.read<Caller & Row<Cluster>>({
    name: 'find-cluster',
    text: `with ${callerCte}
           select ${callerColumns}, found.* from caller left join lateral (
             select ${columns} from cluster where cluster.id = $2 and ${visible}) found on true`,
    values: [tokenHash, idOrNone(id)],
  })
  const caller = callerOf(requireCaller(row))
  if (!row?.state || (clusterStatus(row.state) === 'deleted' && !options.deleted)) throw notFound('Cluster not found')
  return { caller, cluster: clusterOf<Cluster>(row) }
}

/**
 * Reads what the API shows of a cluster that is not deleted. Extras take a second statement, which most clusters do not
 * need; callers that know of extras have both run at once.
 */
export async function getClusterDetails(
  db: Db,
  tokenHash: Buffer,
  id: string,
  known = { extras: false },
): Promise<ClusterDetails> {
  const [row, more] = await Promise.all([
    db.batch(findDetails, { tokenHash, id: idOrNone(id) }),
    known.extras ? findExtras(db, id) : undefined,
  ])
  requireCaller(row)
  if (!row?.cluster || clusterStatus(row.cluster.state) === 'deleted') throw notFound('Cluster not found')
  const { cluster } = row
  return Object.assign(cluster, more ?? (cluster.hasExtras ? await findExtras(db, cluster.id) : noExtras))
}

type DetailsRow = Caller & { cluster: (ClusterDetails & { hasExtras: boolean }) | null }

async function findDetails(db: Query, asked: { tokenHash: Buffer; id: string }[]): Promise<(DetailsRow | undefined)[]> {
  const { rows } = await db.query<DetailsRow & { position: number }>({
    name: 'find-cluster-details',
    text: `with asked as (
             select * from unnest($1::bytea[], $2::text[]) with ordinality as asked (token_hash, cluster_id, position)),
           ${callersCte}
           select position, ${callerColumns}, to_json(found) as cluster from caller left join lateral (
             select ${details}, ${hasExtras} from cluster join org on org.id = cluster.org_id
             where cluster.id = cluster_id and ${visible}) found on true`,
    values: [asked.map(({ tokenHash }) => tokenHash), asked.map(({ id }) => id)],
  })
  return byPosition(asked, rows)
}

async function findExtras(db: Db, id: string): Promise<Extras> {
  const [row] = await db.read<{ extras: Extras }>({
    name: 'find-cluster-extras',
    text: `select to_json(found) as extras from (select ${extras} from cluster where id = $1) found`,
    values: [id],
  })
  return row?.extras ?? noExtras
}

export async function listClusters(db: Query, orgId: string, includeDeleted: boolean): Promise<ClusterDetails[]> {
  const { rows } = await db.query<{ cluster: ClusterDetails }>(
    `select to_json(found) as cluster from (
       select ${details}, ${extras} from cluster join org on org.id = cluster.org_id
       where cluster.org_id = $1 and ($2 or cluster.state not in ('deleted', 'purged')) and not scratch) found
     order by found."createdAt", found.id`,
    [orgId, includeDeleted],
  )
  return rows.map((row) => row.cluster)
}

export interface NewCluster {
  id: string
  orgId: string
  name: string
  plan: string
  pgMajor: PostgresMajor
  diskSizeGb: number
  region: string
  postgisEnabled: boolean
  extensions: string[]
  poolMode: NonNullable<CreateCluster['pool_mode']>
  synchronousArchive: boolean
  /** Set for a cluster that must use the same PostgreSQL installation as its source. */
  toolchain?: RecordedToolchain | null
  scratch?: boolean
  drillQuery?: string | null
  retentionDays?: number | null
  maintenanceWindow?: string | null
}

/** Uses its name or the first free one of `otherNames`. Returns false when the organization has them all. */
export async function insertCluster(tx: Tx, cluster: NewCluster, otherNames: string[] = []): Promise<boolean> {
  const { rowCount } = await tx.query(
    `insert into cluster (id, org_id, name, plan, pg_major, disk_size_gb, region, postgis_enabled, pool_mode,
       synchronous_archive, toolchain, scratch, drill_query, retention_days, maintenance_window, extensions,
       undescribed_since)
     select $1, $2, name, $4, $5, $6, $7, $8, $9, $10, $11::jsonb, $12, $13, $14, $15, $16,
       case when $13::text is not null or $14::int is not null or $15::text is not null then now() end
     from unnest($3::text[]) with ordinality as wanted (name, position)
     where not exists (select from cluster taken
       where taken.org_id = $2 and taken.name = wanted.name and taken.state not in ('deleted', 'purged'))
     order by position limit 1
     on conflict (org_id, name) where state not in ('deleted', 'purged') do nothing`,
    [
      cluster.id,
      cluster.orgId,
      [cluster.name, ...otherNames],
      cluster.plan,
      cluster.pgMajor,
      cluster.diskSizeGb,
      cluster.region,
      cluster.postgisEnabled,
      cluster.poolMode,
      cluster.synchronousArchive,
      cluster.toolchain ? JSON.stringify(cluster.toolchain) : null,
      cluster.scratch ?? false,
      cluster.drillQuery ?? null,
      cluster.retentionDays ?? null,
      cluster.maintenanceWindow ?? null,
      cluster.extensions,
    ],
  )
  return rowCount === 1
}

export async function findOrgSlug(db: Query, orgId: string): Promise<string> {
  const { rows } = await db.query<{ slug: string }>('select slug from org where id = $1', [orgId])
  return rows[0]!.slug
}

/** Reads without a token, for the reconciler. */
export async function loadCluster(db: Query, id: string): Promise<Cluster | undefined> {
  const { rows } = await db.query<Row<Cluster>>({
    name: 'load-cluster',
    text: `select ${columns} from cluster where id = $1`,
    values: [id],
  })
  return rows[0] && clusterOf<Cluster>(rows[0])
}

export async function setPlacement(
  tx: Tx,
  id: string,
  uid: number | null,
  toolchain: RecordedToolchain,
): Promise<void> {
  await tx.query('update cluster set uid = $2, toolchain = $3, newest_version = $4 where id = $1', [
    id,
    uid,
    JSON.stringify(toolchain),
    toolchain.version,
  ])
}

export async function usedPorts(db: Query): Promise<Set<number>> {
  const { rows } = await db.query<{ port: number }>('select port from cluster_port')
  return new Set(rows.map((row) => row.port))
}

/** Throws a unique violation when another cluster took a port first; the step is then retried with other ports. */
export async function reservePorts(tx: Tx, id: string, direct: number, pooler: number): Promise<void> {
  await tx.query(`insert into cluster_port (port, cluster_id, purpose) values ($2, $1, 'direct'), ($3, $1, 'pooler')`, [
    id,
    direct,
    pooler,
  ])
  await tx.query('update cluster set direct_port = $2, pooler_port = $3 where id = $1', [id, direct, pooler])
}

/** Only for a cluster whose ports have not been shown to anyone. */
export async function changePorts(tx: Tx, id: string, direct: number, pooler: number): Promise<void> {
  await tx.query('delete from cluster_port where cluster_id = $1', [id])
  await reservePorts(tx, id, direct, pooler)
}

/** Locks a cluster to which something is added, so that it is not deleted meanwhile. Throws when it is being deleted. */
export async function lockKeptCluster(tx: Tx, id: string): Promise<void> {
  const { rowCount } = await tx.query(
    `select 1 from cluster where id = $1 and state not in ('deleting', 'deleted', 'purged') for no key update`,
    [id],
  )
  if (rowCount !== 1) throw notFound('Cluster not found')
}

/** Deletes the ports, users and attachments of the cluster; its own row is kept. */
export async function releaseCluster(tx: Tx, id: string): Promise<void> {
  for (const table of ['cluster_port', 'cluster_user', 'attachment']) {
    await tx.query(`delete from ${table} where cluster_id = $1`, [id])
  }
  await tx.query('update cluster set deleted_at = now(), direct_port = null, pooler_port = null where id = $1', [id])
}

/** `health_since` changes only with the status. */
/** Makes the next look at the cluster a full check. */
export async function requestCheck(tx: Tx, id: string): Promise<void> {
  await tx.query('update cluster set quota_checked_at = null where id = $1', [id])
  await enqueue(tx, 'cluster', id)
}

export async function setHealth(tx: Tx, id: string, health: Health): Promise<void> {
  await tx.query(
    `update cluster set health = $2, health_reason = $3,
       health_since = case when health = $2 then health_since else now() end
     where id = $1 and (health, health_reason) is distinct from ($2, $3)`,
    [id, health.status, health.reason],
  )
}

export interface Storage {
  provisioned: number
  used: number
  /** The quota is checked every minute, but the published usage is updated hourly. */
  publish: boolean
}

export async function setStorage(tx: Tx, id: string, { provisioned, used, publish }: Storage): Promise<void> {
  await tx.query('update cluster set quota_checked_at = now() where id = $1', [id])
  if (!publish) return
  await tx.query(
    `update cluster set storage_provisioned_bytes = $2, storage_used_bytes = $3, storage_measured_at = now() where id = $1`,
    [id, provisioned, used],
  )
}

/** The row holds the organizations of both caller and cluster; only the cluster's becomes `orgId`. */
function clusterOf<T extends Cluster>(row: { clusterOrgId: string | null }): T {
  return { ...row, orgId: row.clusterOrgId } as unknown as T
}

/** Whether a cluster began to be created within the last seconds. Longer creations are large restores, which do not count. */
export async function isClusterBeingCreated(db: Query): Promise<boolean> {
  const { rowCount } = await db.query(
    `select 1 from cluster
     where state in ('creating', 'initializing') and state_since > now() - interval '10 seconds' limit 1`,
  )
  return rowCount === 1
}
