import { describeError } from '../../model/errors.ts'
import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { type DrillSchedule, isDrillDue, passed } from '../../model/postgres/drill.ts'
import { clusterSpec } from '../../model/postgres/spec.ts'
import { nowMicros } from '../../model/time.ts'
import { findCurrentArchive } from '../../store/postgres/archive.ts'
import { queueBackup, readSchedule } from '../../store/postgres/backup.ts'
import { setHealth, setStorage } from '../../store/postgres/cluster.ts'
import { queueDrill, readDrillSchedule } from '../../store/postgres/drill.ts'
import { markRetention } from '../../store/postgres/retention.ts'
import { findClockProblem, hasWindow } from '../../store/postgres/stretch.ts'
import { setVersions } from '../../store/postgres/upgrade.ts'
import { type World, wait } from '../step.ts'
import { keepArchive } from './archive.ts'
import { keepDescribed } from './describe.ts'
import { probeEndpoints, startPooler } from './endpoint.ts'
import { explainDown, findDiskProblem, findLostData } from './file.ts'
import { finishUserDeletions, settlePasswords } from './password.ts'
import { findTakenPoolerPort, findTakenServerPort } from './port.ts'
import { findRepairs } from './repair.ts'
import { keepVerified } from './restore.ts'
import { applyRetention } from './retention.ts'
import { findBackupProblem, keepScrubbed } from './scrub.ts'
import { keepUpgraded, readVersions } from './upgrade.ts'

const checkSeconds = 10
const scratchCheckSeconds = 3600
/** A cluster that became ready less than this ago needs no check before its first backup. */
const freshSeconds = 5
/** The pause before an unhealthy cluster is checked again, such as while a process restarts. */
const unhealthyCheckSeconds = 1
const measureSeconds = 3600
const quotaSeconds = 60
const retentionSeconds = 3600

/** A cluster becomes read-only above the first fraction of its disk size and writable again below the second. */
const readOnlyFraction = 0.95
const writableFraction = 0.9

/** Keeps the processes, archive and backups of a ready cluster going and records its health. */
export async function keepHealthy(cluster: Cluster, world: World) {
  // A drill starts and stops its scratch cluster itself.
  if (cluster.scratch) return wait(scratchCheckSeconds, 'kept for a drill')
  const verification = await keepVerified(cluster, world)
  if (verification) return verification
  const upgrade = await keepUpgraded(cluster, world)
  if (upgrade) return upgrade
  const isDue = await isBackupDue(cluster, world)
  if (isDue && !isOlder(cluster.stateSince, freshSeconds)) return startBackup(cluster)
  await keepRetention(cluster, world)
  const isFull = cluster.health === 'down' || cluster.health === 'read_only'
  const kept = world.postgres.data.listAside(cluster.id).length
  await world.hosting.ensureDiskLimit(cluster.id, cluster.diskSizeGb * (1 + kept), isFull)
  const description = await errorOf(() => keepDescribed(cluster, world))
  const process = await findProcessProblem(cluster, world)
  if (process) return wait(unhealthyCheckSeconds, process.reason, (tx) => setHealth(tx, cluster.id, process))
  const disk = await findDiskProblem(world)
  const deletion = await errorOf(() => finishUserDeletions(cluster, world))
  await settlePasswords(cluster, world)
  const archive = await keepArchive(cluster, world)
  if (archive) {
    // A full disk is the cause of what the archive reports.
    const health = disk ?? archive
    return wait(unhealthyCheckSeconds, archive.reason, (tx) => setHealth(tx, cluster.id, health))
  }
  if (disk) return wait(unhealthyCheckSeconds, disk.reason, (tx) => setHealth(tx, cluster.id, disk))
  if (isDue) return startBackup(cluster)
  const unfinished = description || deletion
  if (unfinished) {
    return wait(unhealthyCheckSeconds, unfinished, (tx) => setHealth(tx, cluster.id, degraded(unfinished)))
  }
  await findRepairs(cluster, world)
  const scrub = await keepScrubbed(cluster, world)
  if (scrub) return scrub
  const schedule = await readDrillSchedule(world.db, cluster.id)
  if (await shouldDrill(cluster, schedule, world)) {
    return wait(1, 'a drill is due', async (tx) => void (await queueDrill(tx, cluster.id)))
  }
  const drill = findDrillProblem(schedule)
  if (needsFullCheck(cluster, drill)) return checkFully(cluster, world, drill)
  return wait(checkSeconds, cluster.healthReason || 'healthy')
}

/** The completed backup wakes the cluster again. */
function startBackup({ id }: Cluster) {
  return wait(checkSeconds, 'a backup is due', async (tx) => void (await queueBackup(tx, id)))
}

/** Also runs for an unhealthy cluster, because expired files may be what fills the disk. */
async function keepRetention(cluster: Cluster, world: World): Promise<void> {
  if (cluster.retentionAt !== null && !isOlder(cluster.retentionAt, retentionSeconds)) return
  // Recorded first, so that a failing repository does not block the other checks.
  await world.db.transaction((tx) => markRetention(tx, cluster.id))
  await applyRetention(cluster, world)
}

const healthy: Health = { status: 'ok', reason: '' }

/** Only a full check can clear an earlier problem. The result of a drill is known without one. */
function needsFullCheck(cluster: Cluster, drill: Health | undefined): boolean {
  const { health, healthReason } = cluster
  if (isQuotaDue(cluster)) return true
  if (drill) return health !== 'read_only' && healthReason !== drill.reason
  return health === 'down' || health === 'degraded'
}

async function shouldDrill(cluster: Cluster, schedule: DrillSchedule, { db, keep }: World): Promise<boolean> {
  const interval = keep.drillIntervalSeconds
  if (interval === null || !isDrillDue(schedule, interval, new Date())) return false
  return hasWindow(db, cluster.id)
}

function findDrillProblem({ result }: DrillSchedule): Health | undefined {
  if (result === null || result === passed) return undefined
  return degraded(`the last restore drill ${result}`)
}

/** Starts what should run. An error of a driver becomes the health of the cluster, so that its owner sees it. */
async function findProcessProblem(cluster: Cluster, world: World): Promise<Health | undefined> {
  const lost = await findLostData(cluster, world)
  if (lost) return lost
  const serverError = await errorOf(() => world.postgres.ensureRunning(cluster.id, clusterSpec(cluster, world.hosting)))
  const server = await world.postgres.inspect(cluster.id)
  if (server.is !== 'ready') {
    const taken = await findTakenServerPort(cluster, world)
    const log = 'log' in server ? server.log : []
    const why = taken ? serverError || portTaken(taken) : await explainDown(cluster, world, serverError, log)
    return { status: 'down', reason: why ? `PostgreSQL is ${server.is}: ${why}` : `PostgreSQL is ${server.is}` }
  }
  const startError = serverError || (await errorOf(() => startPooler(cluster, world)))
  if (startError) return degraded(startError)
  const pooler = await world.pooler.inspectPooler(cluster.id)
  if (pooler.is === 'running') return undefined
  const taken = await findTakenPoolerPort(cluster, world)
  return degraded(`the pooler is ${pooler.is}${taken ? `: ${portTaken(taken)}` : ''}`)
}

function portTaken(port: number): string {
  return `another program listens on port ${port}, which clients know; it starts as soon as the port is free`
}

/** The error message of the work; empty if it succeeds. */
async function errorOf(work: () => Promise<void>): Promise<string> {
  try {
    await work()
    return ''
  } catch (err) {
    return describeError(err)
  }
}

function isQuotaDue(cluster: Cluster): boolean {
  const { quotaCheckedAt } = cluster
  return quotaCheckedAt === null || nowMicros() - quotaCheckedAt > BigInt(quotaSeconds) * 1_000_000n
}

/** Connects through both endpoints like a client and measures the disk usage. */
async function checkFully(cluster: Cluster, world: World, drill: Health | undefined) {
  await world.postgres.ensureGrants(cluster.id)
  const used = await world.postgres.measure(cluster.id, cluster.uid ?? undefined)
  const provisioned = cluster.diskSizeGb * 1024 ** 3
  const seen = (await findEndpointProblem(cluster, world)) ?? (await enforceQuota(cluster, world, used / provisioned))
  const versions = await readVersions(cluster, world)
  const well: Health = versions.note === '' ? healthy : { status: 'ok', reason: versions.note }
  const health = seen === healthy ? ((await findQuietProblem(cluster, world)) ?? drill ?? well) : seen
  const isMeasured = cluster.storageMeasuredAt !== null && !isOlder(cluster.storageMeasuredAt, measureSeconds)
  return wait(checkSeconds, health.reason || 'healthy', async (tx) => {
    await setHealth(tx, cluster.id, health)
    await setStorage(tx, cluster.id, { provisioned, used, publish: !isMeasured })
    await setVersions(tx, cluster.id, versions.running, versions.newest)
  })
}

/** A problem that clients do not notice. */
async function findQuietProblem(cluster: Cluster, world: World): Promise<Health | undefined> {
  const problem = (await findBackupProblem(cluster, world)) ?? (await findClockHealth(cluster, world))
  if (problem) return problem
  const firewall = await world.hosting.findFirewallProblem()
  return firewall === undefined ? undefined : degraded(firewall)
}

/** For how long a change of the clock is reported. Afterwards the recovery windows still show it. */
const clockReportSeconds = 600

async function findClockHealth(cluster: Cluster, { db }: World): Promise<Health | undefined> {
  const problem = await findClockProblem(db, cluster.id, clockReportSeconds)
  if (!problem) return undefined
  const { step, offset } = problem
  if (offset !== 0) {
    const order = offset > 0 ? 'ahead of' : 'behind'
    return degraded(
      `the clock of the server is ${inSeconds(offset)} ${order} that of the platform; restores to a time follow the server`,
    )
  }
  const change = step === 0 ? 'changed' : `set ${step! > 0 ? 'forward' : 'back'} by ${inSeconds(step!)}`
  return degraded(`the clock of the server was ${change}; times in between cannot be restored, see recovery_windows`)
}

function inSeconds(micros: number): string {
  const seconds = Math.abs(micros) / 1e6
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`
}

function isOlder(time: bigint, seconds: number): boolean {
  return nowMicros() - time > BigInt(seconds) * 1_000_000n
}

/** The first backup is due at once, then one per interval. After failures the delay grows from seconds to an hour. */
async function isBackupDue(cluster: Cluster, { db, keep }: World): Promise<boolean> {
  const archive = await findCurrentArchive(db, cluster.id)
  if (!archive) return false
  const { active, ageSeconds, failures, failedSeconds } = await readSchedule(db, cluster.id, archive.epoch)
  if (active || (ageSeconds !== null && ageSeconds < keep.backupIntervalSeconds)) return false
  return failedSeconds === null || failedSeconds > Math.min(3600, 5 * 2 ** failures)
}

async function findEndpointProblem(cluster: Cluster, world: World): Promise<Health | undefined> {
  const reason = await errorOf(() => probeEndpoints(cluster, world))
  // An authentication failure is an answer too: the tenant may have changed the password with SQL.
  return !reason || /authentication failed/.test(reason) ? undefined : degraded(reason)
}

/** A session can override the setting in order to delete data. */
async function enforceQuota(cluster: Cluster, { postgres }: World, usage: number): Promise<Health> {
  const [current] = await postgres.query<{ setting: string }>(
    cluster.id,
    'postgres',
    `select coalesce((select setting from pg_file_settings where name = 'default_transaction_read_only' and applied), 'off') as setting`,
  )
  const isReadOnly = current?.setting === 'on'
  const isFull = usage >= readOnlyFraction || (isReadOnly && usage >= writableFraction)
  if (isFull !== isReadOnly) await setReadOnly(cluster, postgres, isFull ? 'on' : 'off')
  if (!isFull) return healthy
  const percent = Math.floor(usage * 100)
  return {
    status: 'read_only',
    reason: `the disk of ${cluster.diskSizeGb} GB is ${percent} % full; delete data (set default_transaction_read_only=off in the session) or use a larger disk`,
  }
}

async function setReadOnly(cluster: Cluster, postgres: World['postgres'], wanted: 'on' | 'off'): Promise<void> {
  const change = wanted === 'on' ? `set default_transaction_read_only = 'on'` : 'reset default_transaction_read_only'
  await postgres.query(cluster.id, 'postgres', `alter system ${change}`)
  await postgres.query(cluster.id, 'postgres', 'select pg_reload_conf()')
}
