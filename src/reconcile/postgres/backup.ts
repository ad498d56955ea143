import type { Backup, backupStates } from '../../model/postgres/backup.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { labelTime } from '../../model/postgres/restore.ts'
import { dataSpec } from '../../model/postgres/spec.ts'
import { parseLsn } from '../../model/postgres/wal.ts'
import { nowMicros, parseTime } from '../../model/time.ts'
import type { Tx } from '../../store/db.ts'
import { findCurrentArchive } from '../../store/postgres/archive.ts'
import {
  type BackupFacts,
  countRunningBackups,
  listBackups,
  setBackupFacts,
  setBackupProgress,
  setBackupStarted,
} from '../../store/postgres/backup.ts'
import { findOrgSlug, isClusterBeingCreated, loadCluster } from '../../store/postgres/cluster.ts'
import { releaseUnneeded } from '../../store/postgres/restore.ts'
import { findLatest } from '../../store/postgres/stretch.ts'
import { enqueue } from '../../store/work.ts'
import { advance, type Steps, type World, wait } from '../step.ts'
import { settingsOf } from './describe.ts'

/** More concurrent backups would only slow each other down. */
const maxRunning = 2

/** A source that writes this much between two samples, or has active sessions in both, is busy. */
const sampleIntervalMs = 200
const busyBytes = 200_000n
const busySessions = 2

/** Limits of the transfer rate for a busy source, in kilobytes per second; the backup should take at most two hours. */
const minRateKb = 8 * 1024
const maxRateKb = 1024 * 1024
const maxBackupSeconds = 7200

export const backupSteps: Steps<typeof backupStates, Backup> = {
  async queued(backup, world) {
    const { db } = world
    const cluster = await loadCluster(db, backup.clusterId)
    // A worker may have died after it started the job, so the job is removed whenever the backup fails.
    if (cluster?.state !== 'ready') return abandon(backup, world, `the cluster is ${cluster?.state ?? 'gone'}`)
    if ((labelTime(backup.label) ?? 0n) > nowMicros()) return wait(0.2, 'waiting for the time in its label')
    if (isNew(backup) && (await isClusterBeingCreated(db)))
      return wait(0.5, 'waiting for clusters that are being created')
    if ((await countRunningBackups(db)) >= maxRunning) return wait(1, 'waiting for other backups on this machine')
    const archive = await findCurrentArchive(db, cluster.id)
    if (!archive) return wait(1, 'waiting for the archive')
    const noSpace = await findLackOfSpace(cluster, world)
    if (noSpace) return abandon(backup, world, noSpace)
    const isThrottled = await mustThrottle(cluster, world)
    await world.backups.startBackup(cluster.id, backup.label, {
      ...dataSpec(cluster),
      port: cluster.directPort!,
      maxRateKb: isThrottled ? busyRateKb(cluster) : undefined,
    })
    return advance('started', '', (tx) => setBackupStarted(tx, backup.id, archive.epoch))
  },

  async running(backup, world) {
    const { db, backups } = world
    const cluster = await loadCluster(db, backup.clusterId)
    if (cluster?.state !== 'ready') return abandon(backup, world, `the cluster is ${cluster?.state ?? 'gone'}`)
    const seen = await backups.inspectBackup(cluster.id, backup.label)
    if (seen.is === 'absent') return abandon(backup, world, 'the backup was interrupted')
    if (seen.is === 'failed') return abandon(backup, world, seen.reason)
    if (seen.is === 'running') {
      const { bytesDone, bytesVerified } = seen
      const save = (tx: Tx) => setBackupProgress(tx, backup.id, bytesDone, bytesVerified ?? 0)
      if (bytesVerified === undefined) return wait(0.3, `${bytesDone} bytes so far`, save)
      return wait(0.1, `${bytesVerified} of ${bytesDone} bytes verified`, save)
    }
    const archive = await findCurrentArchive(db, cluster.id)
    if (archive?.epoch !== backup.epoch) return abandon(backup, world, 'archiving was restarted meanwhile')
    const slot = await world.receiver.inspectSlot(cluster.id, archive!.slot)
    const isArchived = slot.is === 'ok' && (slot.restartLsn ?? 0n) >= parseLsn(seen.stopLsn)
    if (!isArchived) return wait(0.1, `waiting until the archive has ${seen.stopLsn}`)
    if (!(await hasEarlier(backup, db)) && (await isBeforeWindow(cluster.id, seen.stoppedAt, world)))
      return wait(0.2, 'waiting until the recovery window reaches its end')
    return complete(backup, cluster, world, seen)
  },

  async removing(backup, { repository }) {
    await repository.removeBackup(backup.clusterId, backup.label)
    return advance('gone')
  },
}

/** A new backup yields to the creation of clusters for a while, because callers are waiting for those. */
function isNew({ stateSince }: Backup): boolean {
  return nowMicros() - stateSince < yieldMicros
}

const yieldMicros = 10_000_000n

/** The first backup opens the recovery window, so it waits for the window to reach its end, but not for long. */
async function isBeforeWindow(clusterId: string, stoppedAt: string, { db }: World): Promise<boolean> {
  const end = parseTime(stoppedAt)!
  const waited = nowMicros() - end
  // A source whose clock is ahead of the platform's would have to be waited for even longer.
  if (waited > maxWaitMicros || waited < -maxWaitMicros) return false
  return ((await findLatest(db, clusterId)) ?? 0n) < end
}

const maxWaitMicros = 10_000_000n

async function hasEarlier({ clusterId, epoch }: Backup, db: World['db']): Promise<boolean> {
  return (await listBackups(db, clusterId)).some((one) => one.state === 'completed' && one.epoch === epoch)
}

async function complete(backup: Backup, cluster: Cluster, world: World, facts: BackupFacts & { startedAt: string }) {
  await world.backups.finishBackup({
    clusterId: cluster.id,
    clusterName: cluster.name,
    orgSlug: await findOrgSlug(world.db, cluster.orgId),
    label: backup.label,
    epoch: backup.epoch!,
    pgMajor: cluster.pgMajor,
    ...facts,
    settings: settingsOf(cluster),
  })
  return advance('completed', '', async (tx) => {
    await setBackupFacts(tx, backup.id, facts)
    await releaseUnneeded(tx, cluster.id)
    await enqueue(tx, 'cluster', cluster.id)
  })
}

async function abandon(backup: Backup, { backups }: World, reason: string) {
  await backups.abandonBackup(backup.clusterId, backup.label)
  return advance('failed', reason)
}

/** Space for the WAL that is archived while the backup is made. */
const spareBytes = 128 * 1024 ** 2

/** A backup that filled the disk would stop archiving for every cluster. */
async function findLackOfSpace(cluster: Cluster, { postgres, repository }: World): Promise<string | undefined> {
  const [row] = await postgres.query<{ bytes: string }>(
    cluster.id,
    'postgres',
    'select sum(pg_database_size(oid))::text as bytes from pg_database',
  )
  const [free, needed] = [await repository.freeBytes(), Number(row!.bytes) + spareBytes]
  if (free >= needed) return undefined
  const [freeMb, neededMb] = [Math.floor(free / 1024 ** 2), Math.ceil(needed / 1024 ** 2)]
  return `not enough disk space in the repository: ${freeMb} MB are free, ${neededMb} MB are needed`
}

/** The first backup is never throttled: until it is complete, nothing can be restored. */
async function mustThrottle(cluster: Cluster, world: World): Promise<boolean> {
  const backups = await listBackups(world.db, cluster.id)
  return backups.some((backup) => backup.state === 'completed') && (await isBusy(cluster, world))
}

function busyRateKb({ storageUsedBytes }: Cluster): number {
  const inTimeKb = Math.ceil((storageUsedBytes ?? 0) / 1024 / maxBackupSeconds)
  return Math.min(Math.max(inTimeKb, minRateKb), maxRateKb)
}

/** Compares WAL positions and active sessions, because the statistics of commits are reported late and in bursts. */
async function isBusy(cluster: Cluster, { postgres }: World): Promise<boolean> {
  const sample = async () => {
    const [row] = await postgres.query<{ lsn: string; active: number }>(
      cluster.id,
      'postgres',
      `select pg_current_wal_insert_lsn()::text as lsn, (
         select count(*)::int from pg_stat_activity
         where state = 'active' and backend_type = 'client backend' and pid <> pg_backend_pid()) as active`,
    )
    return { lsn: parseLsn(row!.lsn), active: row!.active }
  }
  const before = await sample()
  await new Promise((resolve) => setTimeout(resolve, sampleIntervalMs))
  const after = await sample()
  return after.lsn - before.lsn > busyBytes || Math.min(before.active, after.active) >= busySessions
}
