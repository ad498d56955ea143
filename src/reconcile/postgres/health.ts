import { clusterSpec } from '../../drivers/postgres/spec.ts'
import { ensureRights } from '../../drivers/postgres/sql/rights.ts'
import { describeError } from '../../model/errors.ts'
import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { type DrillSchedule, isDrillDue, passed } from '../../model/postgres/drill.ts'
import { nowMicros } from '../../model/time.ts'
import { findCurrentArchive, listWindows } from '../../store/postgres/archive.ts'
import { queueBackup, readSchedule } from '../../store/postgres/backup.ts'
import { setHealth, setStorage } from '../../store/postgres/cluster.ts'
import { queueDrill, readDrillSchedule } from '../../store/postgres/drill.ts'
import { markRetention } from '../../store/postgres/retention.ts'
import { type World, wait } from '../step.ts'
import { keepArchive } from './archive.ts'
import { finishPasswords, probeEndpoints, startPooler } from './cluster.ts'
import { keepDescribed } from './describe.ts'
import { findTakenPoolerPort, findTakenServerPort } from './port.ts'
import { keepVerified } from './restore.ts'
import { applyRetention } from './retention.ts'
import { findBackupProblem, keepScrubbed } from './scrub.ts'

const lookSeconds = 10
const scratchLookSeconds = 3600
const freshSeconds = 5
/** A process that was just started again gets this long before anyone is worried. */
const worriedLookSeconds = 1
const measureSeconds = 3600
const quotaSeconds = 60
const retentionSeconds = 3600

/** Past the first share of its disk a cluster turns read-only; below the second it takes writes again. */
const fullShare = 0.95
const roomyShare = 0.9

/** Makes sure that what should run does, and writes down how it is doing. */
export async function keepHealthy(cluster: Cluster, world: World) {
  // Its drill starts and stops it.
  if (cluster.scratch) return wait(scratchLookSeconds, 'kept for a drill')
  const verification = await keepVerified(cluster, world)
  if (verification) return verification
  const isDue = await isBackupDue(cluster, world)
  // What became ready a moment ago was seen to work.
  if (isDue && !isOlder(cluster.stateSince, freshSeconds)) return startBackup(cluster)
  await keepRetention(cluster, world)
  const untold = await problemOf(() => keepDescribed(cluster, world))
  const process = await findProcessProblem(cluster, world)
  if (process) return wait(worriedLookSeconds, process.reason, (tx) => setHealth(tx, cluster.id, process))
  await finishPasswords(cluster, world)
  const archive = await keepArchive(cluster, world)
  if (archive) return wait(worriedLookSeconds, archive.reason, (tx) => setHealth(tx, cluster.id, archive))
  if (isDue) return startBackup(cluster)
  if (untold) return wait(worriedLookSeconds, untold, (tx) => setHealth(tx, cluster.id, degraded(untold)))
  const scrub = await keepScrubbed(cluster, world)
  if (scrub) return scrub
  const schedule = await readDrillSchedule(world.db, cluster.id)
  if (await mayDrill(cluster, schedule, world)) {
    return wait(1, 'a drill is due', async (tx) => void (await queueDrill(tx, cluster.id)))
  }
  const drill = findDrillProblem(schedule)
  if (needsCloseLook(cluster, drill)) return lookClosely(cluster, world, drill)
  return wait(lookSeconds, cluster.healthReason || 'healthy')
}

/** Once it is completed the cluster is looked at again. */
function startBackup({ id }: Cluster) {
  return wait(lookSeconds, 'a backup is due', async (tx) => void (await queueBackup(tx, id)))
}

/** Also of a cluster that is not well: what should have gone may be what fills the disk. */
async function keepRetention(cluster: Cluster, world: World): Promise<void> {
  if (cluster.retentionAt !== null && !isOlder(cluster.retentionAt, retentionSeconds)) return
  // Noted before it is done: a repository that refuses must not keep the cluster from being looked after.
  await world.db.transaction((tx) => markRetention(tx, cluster.id))
  await applyRetention(cluster, world)
}

const fine: Health = { status: 'ok', reason: '' }

/** Only a close look can tell that what was wrong at the last one is right again. What a drill found is known without. */
function needsCloseLook(cluster: Cluster, drill: Health | undefined): boolean {
  const { health, healthReason } = cluster
  if (isQuotaDue(cluster)) return true
  if (drill) return health !== 'read_only' && healthReason !== drill.reason
  return health === 'down' || health === 'degraded'
}

async function mayDrill(cluster: Cluster, schedule: DrillSchedule, { db, keep }: World): Promise<boolean> {
  const interval = keep.drillIntervalSeconds
  if (interval === null || !isDrillDue(schedule, interval, new Date())) return false
  return (await listWindows(db, cluster.id)).length > 0
}

function findDrillProblem({ result }: DrillSchedule): Health | undefined {
  if (result === null || result === passed) return undefined
  return degraded(`the last restore drill ${result}`)
}

/** What cannot be started is not well either, so that a refusal of a driver is said to whoever looks at the cluster. */
async function findProcessProblem(cluster: Cluster, world: World): Promise<Health | undefined> {
  const refused = await problemOf(() => world.postgres.ensureRunning(cluster.id, clusterSpec(cluster, world.hosting)))
  const server = await world.postgres.inspect(cluster.id)
  if (server.is !== 'ready') {
    const taken = await findTakenServerPort(cluster, world)
    const last = refused || (taken && keepsPort(taken)) || ('log' in server ? server.log.at(-1) : undefined)
    return { status: 'down', reason: last ? `PostgreSQL is ${server.is}: ${last}` : `PostgreSQL is ${server.is}` }
  }
  const poolerRefused = refused || (await problemOf(() => startPooler(cluster, world)))
  if (poolerRefused) return degraded(poolerRefused)
  const front = await world.pooler.inspectPooler(cluster.id)
  if (front.is === 'running') return undefined
  const taken = await findTakenPoolerPort(cluster, world)
  return degraded(`the pooler is ${front.is}${taken ? `: ${keepsPort(taken)}` : ''}`)
}

function keepsPort(port: number): string {
  return `another program listens on port ${port}, which clients know; it starts as soon as the port is free`
}

async function problemOf(work: () => Promise<void>): Promise<string> {
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

/** Asks through both endpoints as a client would, and measures the disk. */
async function lookClosely(cluster: Cluster, world: World, drill: Health | undefined) {
  await ensureRights(world.postgres, cluster.id)
  const used = await world.postgres.measure(cluster.id)
  const provisioned = cluster.diskSizeGb * 1024 ** 3
  const seen = (await findEndpointProblem(cluster, world)) ?? (await keepQuota(cluster, world, used / provisioned))
  const health = seen === fine ? ((await findBackupProblem(cluster, world)) ?? drill ?? fine) : seen
  const isMeasured = cluster.storageMeasuredAt !== null && !isOlder(cluster.storageMeasuredAt, measureSeconds)
  return wait(lookSeconds, health.reason || 'healthy', async (tx) => {
    await setHealth(tx, cluster.id, health)
    await setStorage(tx, cluster.id, { provisioned, used, publish: !isMeasured })
  })
}

function isOlder(time: bigint, seconds: number): boolean {
  return nowMicros() - time > BigInt(seconds) * 1_000_000n
}

/** The first one as soon as the cluster is ready, then one per interval; after a failure a while later, then longer. */
async function isBackupDue(cluster: Cluster, { db, keep }: World): Promise<boolean> {
  const archive = await findCurrentArchive(db, cluster.id)
  if (!archive) return false
  const { active, ageSeconds, failures, failedSeconds } = await readSchedule(db, cluster.id, archive.epoch)
  if (active || (ageSeconds !== null && ageSeconds < keep.backupIntervalSeconds)) return false
  return failedSeconds === null || failedSeconds > Math.min(3600, 5 * 2 ** failures)
}

async function findEndpointProblem(cluster: Cluster, world: World): Promise<Health | undefined> {
  const reason = await problemOf(() => probeEndpoints(cluster, world))
  // Who says no to a password answers; the tenant may have changed it in the database itself.
  return !reason || /authentication failed/.test(reason) ? undefined : degraded(reason)
}

/** A session may still override the setting, to delete what fills the disk. */
async function keepQuota(cluster: Cluster, { postgres }: World, share: number): Promise<Health> {
  const [current] = await postgres.query<{ setting: string }>(
    cluster.id,
    'postgres',
    `select coalesce((select setting from pg_file_settings where name = 'default_transaction_read_only' and applied), 'off') as setting`,
  )
  const isReadOnly = current?.setting === 'on'
  const isFull = share >= fullShare || (isReadOnly && share >= roomyShare)
  if (isFull !== isReadOnly) await setReadOnly(cluster, postgres, isFull ? 'on' : 'off')
  if (!isFull) return fine
  const percent = Math.floor(share * 100)
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
