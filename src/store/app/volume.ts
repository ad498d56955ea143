import type { MachineMount } from '../../model/app/machine-config.ts'
import type { Snapshot, Volume } from '../../model/app/volume.ts'
import { BerthError, notFound } from '../../model/errors.ts'
import type { Query, Tx } from '../db.ts'

const columns = `volume.id, volume.app_id as "appId", volume.name, volume.state, volume.state_since as "stateSince",
  volume.region, volume.size_gb as "sizeGb", volume.snapshot_retention as "snapshotRetention",
  volume.auto_backup as "autoBackup", volume.source_volume_id as "sourceVolumeId",
  volume.source_snapshot_id as "sourceSnapshotId", volume.machine_id as "machineId",
  volume.detached_at as "detachedAt", volume.created_at as "createdAt", volume.updated_at as "updatedAt",
  volume.failure`

export interface NewVolume
  extends Pick<
    Volume,
    | 'id'
    | 'appId'
    | 'name'
    | 'region'
    | 'sizeGb'
    | 'snapshotRetention'
    | 'autoBackup'
    | 'sourceVolumeId'
    | 'sourceSnapshotId'
  > {}

/** Undefined when the app is gone. */
export async function insertVolume(tx: Tx, volume: NewVolume): Promise<Volume | undefined> {
  const app = await tx.query(`select 1 from app where id = $1 and state = 'active' for share`, [volume.appId])
  if (app.rowCount === 0) return undefined
  const { rows } = await tx.query<Volume>({
    name: 'insert-volume',
    text: `insert into volume (id, app_id, name, region, size_gb, snapshot_retention, auto_backup, source_volume_id,
             source_snapshot_id)
           values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning ${columns}`,
    values: [
      volume.id,
      volume.appId,
      volume.name,
      volume.region,
      volume.sizeGb,
      volume.snapshotRetention,
      volume.autoBackup,
      volume.sourceVolumeId,
      volume.sourceSnapshotId,
    ],
  })
  return rows[0]
}

/** Reads without a token, for the reconciler. */
export async function loadVolume(db: Query, id: string): Promise<Volume | undefined> {
  const { rows } = await db.query<Volume>({
    name: 'load-volume',
    text: `select ${columns} from volume where id = $1`,
    values: [id],
  })
  return rows[0]
}

/** Finds a volume of this app, unless it is destroyed. */
export async function findVolume(db: Query, appId: string, id: string): Promise<Volume | undefined> {
  const { rows } = await db.query<Volume>({
    name: 'find-volume',
    text: `select ${columns} from volume where id = $1 and app_id = $2 and state <> 'destroyed'`,
    values: [id, appId],
  })
  return rows[0]
}

/** Like findVolume, and locks the row until the transaction ends. */
export async function lockVolume(tx: Tx, appId: string, id: string): Promise<Volume | undefined> {
  await tx.query('select 1 from volume where id = $1 for update', [id])
  return findVolume(tx, appId, id)
}

export async function listVolumes(db: Query, appId: string): Promise<Volume[]> {
  const { rows } = await db.query<Volume>({
    name: 'list-volumes',
    text: `select ${columns} from volume where app_id = $1 and state <> 'destroyed' order by created_at, id`,
    values: [appId],
  })
  return rows
}

export interface OrgVolume extends Volume {
  appName: string
  /** The timestamp as text, for the cursor. */
  updatedText: string
}

export interface OrgVolumeFilter {
  includeDeleted: boolean
  region: string | null
  states: string[] | null
}

/** A page of an organization's volumes, least recently changed first. */
export async function listOrgVolumes(
  db: Query,
  orgId: string,
  { includeDeleted, region, states }: OrgVolumeFilter,
  { after, limit }: { after: { at: string; id: string } | null; limit: number },
): Promise<OrgVolume[]> {
  const { rows } = await db.query<OrgVolume>({
    name: 'list-org-volumes',
    text: `select ${columns}, app.name as "appName", volume.updated_at::text as "updatedText"
           from app join volume on volume.app_id = app.id
           where app.org_id = $1 and app.state = 'active' and ($2 or volume.state <> 'destroyed')
             and ($3::text is null or volume.region = $3) and ($4::text[] is null or volume.state = any($4))
             and ($5::timestamptz is null or (volume.updated_at, volume.id) > ($5, $6))
           order by volume.updated_at, volume.id limit $7`,
    values: [orgId, includeDeleted, region, states, after?.at ?? null, after?.id ?? '', limit],
  })
  return rows
}

export async function setVolumeSize(tx: Tx, id: string, sizeGb: number): Promise<void> {
  await tx.query('update volume set size_gb = $2 where id = $1', [id, sizeGb])
}

export async function setVolumeBackups(tx: Tx, id: string, retention: number, autoBackup: boolean): Promise<void> {
  await tx.query('update volume set snapshot_retention = $2, auto_backup = $3 where id = $1', [
    id,
    retention,
    autoBackup,
  ])
}

export async function setVolumeFailure(tx: Tx, id: string, failure: string): Promise<void> {
  await tx.query('update volume set failure = $2 where id = $1', [id, failure])
}

export interface VolumeSource {
  state: string
  region: string
  sizeGb: number
}

/** The volume or snapshot of the organization from which a new volume is copied. */
export async function findSource(
  tx: Tx,
  orgId: string,
  source: { volumeId: string } | { snapshotId: string },
): Promise<VolumeSource | undefined> {
  const { rows } = await tx.query<VolumeSource>(
    'volumeId' in source
      ? `select volume.state, volume.region, size_gb as "sizeGb" from volume join app on app.id = app_id
         where volume.id = $1 and org_id = $2 and volume.state not in ('destroying', 'destroyed') for share of volume`
      : `select snapshot.state, volume.region, (volume_bytes / 1073741824)::int as "sizeGb" from snapshot
           join volume on volume.id = volume_id join app on app.id = app_id
         where snapshot.id = $1 and org_id = $2 and snapshot.state not in ('removing', 'removed') for share of snapshot`,
    ['volumeId' in source ? source.volumeId : source.snapshotId, orgId],
  )
  return rows[0]
}

/** Whether a new volume is still being copied from this volume or snapshot. */
export async function isBeingCopied(db: Query, id: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `select 1 from volume where state = 'creating' and (source_volume_id = $1 or source_snapshot_id = $1)
     union all select 1 from snapshot where state = 'creating' and volume_id = $1 limit 1`,
    [id],
  )
  return rowCount !== 0
}

// The start of the machine waits for one that is being created, and finishes extending one itself.
const attachable = `state in ('creating', 'created', 'extending')`

/** Attaches the volume with this id, or any unattached volume of this name. Idempotent. */
export async function attachVolume(
  tx: Tx,
  asked: { appId: string; volumeId?: string; name?: string; region?: string; machineId: string },
): Promise<{ id: string }> {
  const id = asked.volumeId ?? (await findFree(tx, asked))
  const { rows } = await tx.query<{ state: string; machineId: string | null; ready: boolean }>(
    `select state, machine_id as "machineId", ${attachable} as ready from volume
     where id = $1 and app_id = $2 and state not in ('destroying', 'destroyed') for update`,
    [id, asked.appId],
  )
  const volume = rows[0]
  if (!volume) throw volumeNotFound()
  if (volume.machineId === asked.machineId) return { id }
  if (volume.machineId !== null) {
    throw precondition(`failed_precondition: volume ${id} is already attached to machine ${volume.machineId}`)
  }
  if (!volume.ready) throw precondition(`failed_precondition: volume ${id} is ${volume.state} and cannot be attached`)
  await tx.query('update volume set machine_id = $2 where id = $1', [id, asked.machineId])
  return { id }
}

async function findFree(
  tx: Tx,
  asked: { appId: string; name?: string; region?: string; machineId: string },
): Promise<string> {
  const named = `app_id = $1 and name = $2 and ($3::text is null or region = $3) and ${attachable}`
  const { rows } = await tx.query<{ id: string }>(
    `select id from volume where ${named} and (machine_id is null or machine_id = $4)
     order by machine_id nulls last, created_at, id limit 1 for update skip locked`,
    [asked.appId, asked.name ?? '', asked.region ?? null, asked.machineId],
  )
  if (rows[0]) return rows[0].id
  const { rowCount } = await tx.query(`select 1 from volume where ${named} limit 1`, [
    asked.appId,
    asked.name ?? '',
    asked.region ?? null,
  ])
  if (rowCount === 0) throw volumeNotFound()
  throw precondition(`failed_precondition: every volume named ${asked.name} is attached to a machine`)
}

/** The machine must not be running. */
export async function detachVolumes(tx: Tx, machineId: string, except: string[] = []): Promise<void> {
  await tx.query(
    'update volume set machine_id = null, detached_at = now() where machine_id = $1 and not id = any($2)',
    [machineId, except],
  )
}

/** The volumes of a machine. It can start when none of them is `creating`. */
export async function listMachineVolumes(
  db: Query,
  machineId: string,
): Promise<Pick<Volume, 'id' | 'state' | 'sizeGb' | 'failure'>[]> {
  const { rows } = await db.query<Pick<Volume, 'id' | 'state' | 'sizeGb' | 'failure'>>({
    name: 'volumes-of-machine',
    text: `select id, state, size_gb as "sizeGb", failure from volume where machine_id = $1 order by id`,
    values: [machineId],
  })
  return rows
}

export async function machineState(db: Query, machineId: string): Promise<string | undefined> {
  const { rows } = await db.query<{ state: string }>('select state from machine where id = $1', [machineId])
  return rows[0]?.state
}

/** The mount in the config of the machine that the volume is attached to. */
export async function findMount(db: Query, { id, machineId }: Volume): Promise<MachineMount | undefined> {
  if (machineId === null) return undefined
  const { rows } = await db.query<{ mount: MachineMount }>({
    name: 'find-mount',
    text: `select mount from machine, jsonb_array_elements(config -> 'mounts') mount
           where machine.id = $1 and mount ->> 'volume' = $2`,
    values: [machineId, id],
  })
  return rows[0]?.mount
}

/** Volumes of a deleted app that still have to be destroyed. */
export async function listVolumesToDestroy(db: Query, appId: string, limit: number): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select id from volume where app_id = $1 and state not in ('destroying', 'destroyed') order by id limit $2`,
    [appId, limit],
  )
  return rows.map((row) => row.id)
}

export async function snapshotsToRemove(db: Query, appId: string, limit: number): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select snapshot.id from snapshot join volume on volume.id = volume_id
     where app_id = $1 and snapshot.state not in ('removing', 'removed') order by snapshot.id limit $2`,
    [appId, limit],
  )
  return rows.map((row) => row.id)
}

/** Whether any volume of the app may still have files on disk. */
export async function hasVolumes(db: Query, appId: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `select 1 from volume where app_id = $1 and state <> 'destroyed'
     union all select 1 from snapshot join volume on volume.id = volume_id where app_id = $1 and snapshot.state <> 'removed'
     limit 1`,
    [appId],
  )
  return rowCount !== 0
}

export function volumeNotFound() {
  return notFound('volume not found')
}

function precondition(message: string) {
  return new BerthError('precondition_failed', message)
}

const snapshotColumns = `snapshot.id, snapshot.volume_id as "volumeId", snapshot.state,
  snapshot.state_since as "stateSince", snapshot.size_bytes as "sizeBytes", snapshot.volume_bytes as "volumeBytes",
  snapshot.retention_days as "retentionDays", snapshot.created_at as "createdAt", snapshot.failure`

/** Returns false when a snapshot of this volume is in progress. One that a caller requested counts towards the quota. */
export async function insertSnapshot(
  tx: Tx,
  id: string,
  volume: Volume,
  volumeBytes: number,
  requested = false,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `insert into snapshot (id, volume_id, volume_bytes, retention_days, requested) values ($1, $2, $3, $4, $5)
     on conflict (volume_id) where state = 'creating' do nothing`,
    [id, volume.id, volumeBytes, volume.snapshotRetention, requested],
  )
  return rowCount === 1
}

export async function loadSnapshot(db: Query, id: string): Promise<Snapshot | undefined> {
  const { rows } = await db.query<Snapshot>({
    name: 'load-snapshot',
    text: `select ${snapshotColumns} from snapshot where id = $1`,
    values: [id],
  })
  return rows[0]
}

/** Newest first. */
export async function listSnapshots(db: Query, volumeId: string): Promise<Snapshot[]> {
  const { rows } = await db.query<Snapshot>({
    name: 'list-snapshots',
    text: `select ${snapshotColumns} from snapshot where volume_id = $1 and state not in ('removing', 'removed')
           order by created_at desc, id`,
    values: [volumeId],
  })
  return rows
}

export async function setSnapshotSize(tx: Tx, id: string, bytes: number): Promise<void> {
  await tx.query('update snapshot set size_bytes = $2 where id = $1', [id, bytes])
}

export async function setSnapshotFailure(tx: Tx, id: string, failure: string): Promise<void> {
  await tx.query('update snapshot set failure = $2 where id = $1', [id, failure])
}
