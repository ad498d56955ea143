// A new data directory from a backup and the write-ahead log after it. The copy is a job; the recovery is the cluster's
// own server, started by `PostgresDriver.ensureRunning`, on settings that lie in the copy. Every function may be stopped
// anywhere and run again.
import { existsSync, readdirSync, rmSync } from 'node:fs'
import { parseLsn, type WalPiece } from '../../../model/postgres/wal.ts'
import { readTextIfPresent } from '../../host/file.ts'
import { ensureFile } from '../../host/fresh.ts'
import type { Home } from '../../host/home.ts'
import { run, waitUntil } from '../../host/process.ts'
import { discard, sweepTrash } from '../../host/trash.ts'
import type { Repository } from '../../repository/driver.ts'
import { type JobDriver, type JobState, withoutTime } from '../../s6/job.ts'
import type { Supervisor } from '../../s6/supervisor.ts'
import { ensureClusterDirectory } from '../data.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import type { PostgresDriver } from '../server.ts'
import type { Toolchain } from '../toolchain/toolchain.ts'
import { ensureTools } from '../toolchain/tools.ts'
import { isDiskFull, recoverySettings } from './log.ts'
import { continueToEnd, finishRecovery, inspectRecovery } from './recovery.ts'
import {
  type CopyOrder,
  copyCommand,
  damagedCode,
  freshMark,
  refusalCommand,
  unverifiedMark,
  wordsFile,
} from './script.ts'
import { manifestBytes, type RecoveryTarget, renderPlan, totalOf } from './wal.ts'

export interface RestoreSpec {
  /** The source's. */
  toolchain: Toolchain
  uid?: number | undefined
  backup: { clusterId: string; label: string; startLsn: string; stopLsn: string }
  /** The end of the last one is the cut. */
  pieces: WalPiece[]
  target: RecoveryTarget
  /** The source's own at the cut. */
  timeline: number
  /** The checksums of the backup were read from its disk not long ago. */
  trusted?: boolean | undefined
}

/** `damage` says what is wrong with the backup, if that is why. */
type Failed = { is: 'failed'; reason: string; damage?: string | undefined }

export type CopyState =
  | { is: 'absent' }
  | { is: 'running'; bytesDone: number; bytesTotal: number; bytesVerified: number }
  | Failed
  | { is: 'done' }

export type RecoveryState =
  | { is: 'replaying'; replayedUntil: string | null; replayedLsn: string | null }
  /** There is no transaction after the target, so that PostgreSQL did not find the place to stop: `continueToEnd`. */
  | { is: 'ended-early' }
  | { is: 'failed'; reason: string }
  | { is: 'promoted'; endLsn: string; timeline: number; replayedUntil: string | null }

export type VerificationState = { is: 'running' } | { is: 'passed' } | Failed

export interface RestoreDriver {
  /**
   * Nothing when the copy runs or has failed or the data directory is there. One that was interrupted is made again. The
   * backup is verified before, unless it is trusted and the copy is its very blocks.
   */
  startCopy(id: string, spec: RestoreSpec): Promise<void>
  /** Nothing when all checksums were read, are being read or were found wrong. */
  startVerification(id: string, spec: RestoreSpec): Promise<void>
  /** Looks for this long whether it is done, and only then how far it is: that takes several processes each time. */
  inspectCopy(id: string, patienceSeconds?: number): Promise<CopyState>
  /** Whether the checksums behind a copy that is done were read. */
  inspectVerification(id: string): Promise<VerificationState>
  /** How far the server has come, once it was started. */
  inspectRecovery(id: string, spec: RestoreSpec): Promise<RecoveryState>
  /** Starts the server again without a time: the cut is the target. */
  continueToEnd(id: string, spec: RestoreSpec): Promise<void>
  /**
   * Throws unless replay came as far as it should. Afterwards nothing in the data directory speaks of a recovery. Answers
   * with the bytes that were copied, which only the first call can tell.
   */
  finish(id: string, spec: RestoreSpec): Promise<number | undefined>
  /** Ends a copy and removes what it left; the data directory is the cluster's. */
  remove(id: string): Promise<void>
}

export interface RestoreParts {
  home: Home
  supervisor: Supervisor
  jobs: JobDriver
  repository: Pick<Repository, 'backupData' | 'planWal'>
  postgres: Pick<PostgresDriver, 'inspect' | 'query'>
}

export function restoreDriver(parts: RestoreParts): RestoreDriver {
  return {
    startCopy: (id, spec) => startCopy(parts, id, spec),
    startVerification: (id, spec) => startVerification(parts, id, spec),
    inspectCopy: (id, patienceSeconds = 0) => inspectCopy(parts, id, patienceSeconds),
    inspectVerification: (id) => inspectVerification(parts, id),
    inspectRecovery: (id, spec) => inspectRecovery(parts, id, spec),
    continueToEnd: (id, spec) => continueToEnd(parts, id, spec),
    async finish(id, spec) {
      await finishRecovery(parts, id, spec)
      const plan = readTextIfPresent(planOf(clusterPaths(parts.home, id)))
      await removeCopy(parts, id)
      return plan === undefined ? undefined : totalOf(plan)
    },
    remove: (id) => removeCopy(parts, id),
  }
}

// Those who are at work come first, but whoever restores is in a hurry too: beside each of them it gets a third.
const niceness = 10

type EndedJob = Extract<JobState, { is: 'ended' }>

function jobOf(id: string): string {
  return `copy-${id}`
}

function planOf(paths: ClusterPaths): string {
  return `${paths.directory}/copy.plan`
}

function wordsOf(paths: ClusterPaths): string {
  return `${paths.directory}/${wordsFile}`
}

function isUnverified(paths: ClusterPaths): boolean {
  return existsSync(`${paths.directory}/${unverifiedMark}`)
}

async function startCopy(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<void> {
  const paths = clusterPaths(parts.home, id)
  if (existsSync(paths.data)) return
  await startJob(parts, id, spec, isWorthAnother, () => prepareCopy(parts, paths, spec))
}

// Whatever kept a verification from its end says nothing about the backup.
async function startVerification(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<void> {
  const paths = clusterPaths(parts.home, id)
  if (!isUnverified(paths)) return
  const isOpen = (job: EndedJob) => !isDamage(job)
  await startJob(parts, id, spec, isOpen, async () => copyCommand(orderOf(parts, paths, spec)))
}

async function startJob(
  { jobs }: RestoreParts,
  id: string,
  { toolchain }: RestoreSpec,
  mayRepeat: (job: EndedJob) => boolean,
  command: () => Promise<string[]>,
): Promise<void> {
  const job = await jobs.inspectJob(jobOf(id))
  if (job.is === 'running' || (job.is === 'ended' && !mayRepeat(job))) return
  if (job.is === 'ended') await jobs.removeJob(jobOf(id))
  await ensureTools(toolchain)
  await jobs.ensureJob(jobOf(id), { command: await command(), niceness })
}

function isDamage({ exitCode }: EndedJob): boolean {
  return exitCode === damagedCode
}

// Somebody killed it or a part of it, or a power failure took what it had made. Anything else would only happen again.
function isWorthAnother({ exitCode = 0 }: EndedJob): boolean {
  return exitCode === 0 || exitCode > 128
}

async function prepareCopy(parts: RestoreParts, paths: ClusterPaths, spec: RestoreSpec): Promise<string[]> {
  const order = orderOf(parts, paths, spec)
  try {
    const wal = await parts.repository.planWal(spec.pieces, parseLsn(spec.backup.startLsn))
    const manifest = readTextIfPresent(`${order.backup}/backup_manifest`) ?? ''
    await ensureClusterDirectory(parts.home, paths)
    ensureFile(planOf(paths), renderPlan(wal, manifestBytes(manifest)), { mode: 0o600 })
  } catch (error) {
    return refusalCommand((error as Error).message)
  }
  return copyCommand(order)
}

function orderOf({ repository }: RestoreParts, paths: ClusterPaths, spec: RestoreSpec): CopyOrder {
  const { clusterId, label } = spec.backup
  return {
    directory: paths.directory,
    backup: repository.backupData(clusterId, label),
    label,
    plan: planOf(paths),
    settings: recoverySettings(spec.target, spec.timeline),
    uid: spec.uid,
    verifier: `${spec.toolchain.tools}/pg_verifybackup`,
    trusted: spec.trusted ?? false,
  }
}

async function inspectCopy({ home, jobs }: RestoreParts, id: string, patienceSeconds: number): Promise<CopyState> {
  const paths = clusterPaths(home, id)
  if (await waitUntil(() => existsSync(paths.data), patienceSeconds)) return { is: 'done' }
  const job = await jobs.inspectJob(jobOf(id))
  if (job.is === 'running') return measureCopy(paths)
  // Looked at again, because it may have come between the two looks.
  if (existsSync(paths.data)) return { is: 'done' }
  if (job.is === 'absent') return { is: 'absent' }
  return failureOf(job)
}

async function inspectVerification({ home, jobs }: RestoreParts, id: string): Promise<VerificationState> {
  if (!isUnverified(clusterPaths(home, id))) return { is: 'passed' }
  const job = await jobs.inspectJob(jobOf(id))
  return job.is === 'ended' && isDamage(job) ? failureOf(job) : { is: 'running' }
}

async function measureCopy(paths: ClusterPaths): Promise<CopyState> {
  const bytesTotal = totalOf(readTextIfPresent(planOf(paths)) ?? '0')
  // Files come and go under du, which then says so although its sum is as good as any.
  const script = 'du -sbc -- "$1"* 2>/dev/null | tail -n 1; tail -n 1 -- "$2" 2>/dev/null || :'
  const words = wordsOf(paths)
  const { stdout } = await run('sh', ['-c', script, 'measure', `${paths.directory}/${freshMark}`, words])
  const [copied = '', verified = ''] = stdout.split('\n')
  return {
    is: 'running',
    bytesDone: Math.min(Number.parseInt(copied, 10) || 0, bytesTotal),
    bytesTotal,
    // `  231768/1049347 kB (22%) verified`
    bytesVerified: (Number.parseInt(verified, 10) || 0) * 1024,
  }
}

function failureOf(job: EndedJob): Failed {
  const reason = explainEnd(job)
  return { is: 'failed', reason, ...(isDamage(job) && { damage: reason.replace(/^backup \S+ is damaged: /, '') }) }
}

function explainEnd(job: EndedJob): string {
  const words = job.log.map(withoutTime)
  if (words.some(isDiskFull)) return 'the disk is full'
  if (isWorthAnother(job)) return 'the copy was interrupted'
  return words.at(-1) ?? `the copy ended with exit code ${job.exitCode}`
}

async function removeCopy({ home, jobs }: RestoreParts, id: string): Promise<void> {
  const paths = clusterPaths(home, id)
  // First, so that nothing new comes.
  await jobs.removeJob(jobOf(id))
  if (!existsSync(paths.directory)) return
  for (const entry of readdirSync(paths.directory).filter((name) => name.startsWith(freshMark))) {
    discard(home, `${paths.directory}/${entry}`)
  }
  rmSync(planOf(paths), { force: true })
  rmSync(wordsOf(paths), { force: true })
  sweepTrash(home)
}
