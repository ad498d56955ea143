// Imports clusters that exist in the repository but not in the state database.
import type { RecordedToolchain } from '../../model/postgres/cluster.ts'
import type { ArchiveBase } from '../../model/postgres/restore.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import { enqueue } from '../work.ts'
import type { NewCluster } from './cluster.ts'
import { insertPins, pinsOf } from './restore.ts'

export interface AdoptedCluster extends NewCluster {
  toolchain: RecordedToolchain
  /** RFC 3339, like all times in the repository. */
  createdAt: string
}

export interface AdoptedBackup {
  id: string
  label: string
  epoch: number
  timeline: number
  startLsn: string
  stopLsn: string
  startedAt: string
  stoppedAt: string
  sizeBytes: number
  damage: string | null
  pinned: boolean
  /** Whether the repository has only the WAL that the backup itself needs. */
  alone: boolean
}

export interface AdoptedEpoch {
  epoch: number
  timeline: number
  startLsn: string
  startedAt: string
  /** Null if no time can be restored. */
  latestAt: Micros | null
  latestLsn: string
  /** What the epoch depends on, if it has no backup of its own. */
  base?: ArchiveBase | undefined
}

export async function listKnownClusters(db: Query, ids: string[]): Promise<Set<string>> {
  const { rows } = await db.query<{ id: string }>('select id from cluster where id = any($1)', [ids])
  return new Set(rows.map((row) => row.id))
}

/**
 * Inserts the cluster as deleted now: nothing of it runs, and its backups are retained like those of any deleted cluster.
 * Returns false when it exists already.
 */
export async function insertAdoptedCluster(tx: Tx, cluster: AdoptedCluster, note: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `insert into cluster (id, org_id, name, plan, pg_major, disk_size_gb, region, postgis_enabled, pool_mode,
       synchronous_archive, toolchain, created_at, drill_query, retention_days, maintenance_window, extensions,
       state, deleted_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 'deleted', now()) on conflict (id) do nothing`,
    [
      cluster.id,
      cluster.orgId,
      cluster.name,
      cluster.plan,
      cluster.pgMajor,
      cluster.diskSizeGb,
      cluster.region,
      cluster.postgisEnabled,
      cluster.poolMode,
      cluster.synchronousArchive,
      JSON.stringify(cluster.toolchain),
      cluster.createdAt,
      cluster.drillQuery ?? null,
      cluster.retentionDays ?? null,
      cluster.maintenanceWindow ?? null,
      cluster.extensions,
    ],
  )
  if (rowCount === 0) return false
  await tx.query(
    `insert into event (kind, resource_id, from_state, to_state, event, note)
     values ('cluster', $1, '', 'deleted', 'adopted', $2)`,
    [cluster.id, note],
  )
  await enqueue(tx, 'cluster', cluster.id)
  return true
}

/** Its damage is recorded separately. */
export async function insertAdoptedBackup(tx: Tx, clusterId: string, backup: AdoptedBackup): Promise<void> {
  await tx.query(
    `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, created_at, started_at,
       stopped_at, finished_at, size_bytes, pinned, alone)
     values ($1, $2, $3, 'completed', $4, $5, $6, $7, $8, $8, $9, $9, $10, $11, $12)`,
    [
      backup.id,
      clusterId,
      backup.label,
      backup.epoch,
      backup.timeline,
      backup.startLsn,
      backup.stopLsn,
      backup.startedAt,
      backup.stoppedAt,
      backup.sizeBytes,
      backup.pinned,
      backup.alone,
    ],
  )
}

export async function insertAdoptedEpoch(tx: Tx, clusterId: string, epoch: AdoptedEpoch): Promise<void> {
  await tx.query(
    `with added as (
       insert into archive (cluster_id, epoch, slot, timeline, start_lsn, started_at, ended_at, base)
       values ($1, $2, $3, $4, $5, $6, now(), $9) returning cluster_id, epoch, start_lsn, base)
     insert into stretch (cluster_id, epoch, from_lsn, from_at, begun_at, latest_at, latest_lsn, ended)
     select cluster_id, epoch, coalesce((base ->> 'lsn')::pg_lsn, start_lsn), (base ->> 'at')::timestamptz, $6,
       timestamptz 'epoch' + $7::bigint * interval '1 microsecond', $8, true from added`,
    [
      clusterId,
      epoch.epoch,
      `berth_${epoch.epoch}`,
      epoch.timeline,
      epoch.startLsn,
      epoch.startedAt,
      epoch.latestAt?.toString() ?? null,
      epoch.latestLsn,
      epoch.base ? JSON.stringify(epoch.base) : null,
    ],
  )
  if (epoch.base) await insertPins(tx, clusterId, pinsOf(epoch.base))
}
