// Restores a backup and the WAL after it into a new data directory. The copy is a job; the recovery is done by the server
// of the new cluster, which `PostgresDriver.ensureRunning` starts with recovery settings in the copied directory.
import { existsSync, renameSync, rmSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { isDiskFull } from '../../../model/disk-full.ts'
import { waitUntil } from '../../../model/poll.ts'
import { holeOfFile, type WalHole } from '../../../model/postgres/damage.ts'
import { parseLsn } from '../../../model/postgres/wal.ts'
import { confineJob } from '../../confine/confine.ts'
import { ensureDirectory, ensureFile } from '../../host/atomic-file.ts'
import { readTextIfPresent } from '../../host/file.ts'
import { run } from '../../host/process.ts'
import { emptyTrash, moveToTrash } from '../../host/trash.ts'
import { inspectUntrustedFile, listUntrustedDirectory, readUntrustedFile } from '../../host/untrusted-file.ts'
import { type Repository, WalFileError } from '../../repository/driver.ts'
import type { JobDriver, JobState } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import { maxManifestBytes } from '../backup/backup.ts'
import { programPaths } from '../confinement.ts'
import { ensureClusterDirectory } from '../data.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import { ensureTools } from '../toolchain/tools.ts'
import {
  type CopyOptions,
  copyCommand,
  damagedExitCode,
  damagedWalExitCode,
  damagedWalPattern,
  refusalCommand,
  temporaryPrefix,
  unverifiedMark,
  verifierLog,
} from './copy-command.ts'
import type { CopyState, RestoreDriver, RestoreFailure, RestoreSpec, VerificationState } from './driver.ts'
import { recoverySettings } from './log.ts'
import { finishRecovery, inspectRecovery, type RecoveryParts } from './recovery.ts'
import { manifestBytes, planBytes, renderPlan } from './wal.ts'

export interface RestoreParts extends RecoveryParts {
  jobs: JobDriver
  repository: Pick<Repository, 'backupData' | 'findForeignBackup' | 'findMissingBackup' | 'planWal'>
}

export function restoreDriver(parts: RestoreParts): RestoreDriver {
  return {
    startCopy: (id, spec) => startCopy(parts, id, spec),
    startVerification: (id, spec) => startVerification(parts, id, spec),
    inspectCopy: (id, timeoutSeconds = 0) => inspectCopy(parts, id, timeoutSeconds),
    inspectVerification: (id) => inspectVerification(parts, id),
    inspectRecovery: (id, spec) => inspectRecovery(parts, id, spec),
    async finish(id, spec) {
      await finishRecovery(parts, id, spec)
      const plan = readTextIfPresent(planFile(clusterPaths(parts.home, id)))
      await removeCopy(parts, id)
      return plan === undefined ? undefined : planBytes(plan)
    },
    remove: (id) => removeCopy(parts, id),
  }
}

// Running clusters have priority, but a caller is waiting for the restore too, so it is not the lowest one.
const niceness = 10

const maxLogBytes = 1024 ** 2
const maxEntries = 1000

type EndedJob = Extract<JobState, { is: 'ended' }>

function planFile(paths: ClusterPaths): string {
  return `${paths.directory}/copy.plan`
}

/** The directory of the job, which belongs to the user of the cluster. The server does not see it. */
function copyDirectory(paths: ClusterPaths): string {
  return `${paths.directory}/copy`
}

function isUnverified(paths: ClusterPaths): boolean {
  return inspectUntrustedFile(copyDirectory(paths), unverifiedMark) !== undefined
}

/** Moves a finished copy to its place. Returns true if the data directory exists. */
function takeCopy(paths: ClusterPaths): boolean {
  if (existsSync(paths.data)) return true
  if (!inspectUntrustedFile(copyDirectory(paths), 'data')?.isDirectory()) return false
  renameSync(`${copyDirectory(paths)}/data`, paths.data)
  return true
}

async function startCopy(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<void> {
  const paths = clusterPaths(parts.home, id)
  if (existsSync(paths.data)) return
  await startJob(parts, id, spec, wasInterrupted, () => prepareCopy(parts, paths, spec))
}

// A verification that ended for any other reason than damage says nothing about the backup, so it is repeated.
async function startVerification(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<void> {
  const paths = clusterPaths(parts.home, id)
  if (!isUnverified(paths)) return
  const isInconclusive = (job: EndedJob) => !isDamage(job)
  await startJob(parts, id, spec, isInconclusive, () => verificationCommand(parts, paths, spec))
}

async function startJob(
  { home, jobs }: RestoreParts,
  id: string,
  { toolchain }: RestoreSpec,
  mayRepeat: (job: EndedJob) => boolean,
  command: () => Promise<string[]>,
): Promise<void> {
  const { copyJob } = clusterPaths(home, id)
  const job = await jobs.inspectJob(copyJob)
  if (job.is === 'running' || (job.is === 'ended' && !mayRepeat(job))) return
  if (job.is === 'ended') await jobs.removeJob(copyJob)
  await ensureTools(toolchain)
  await jobs.ensureJob(copyJob, { command: await command(), niceness })
}

function isDamage({ exitCode }: EndedJob): boolean {
  return exitCode === damagedExitCode
}

// The job or one of its children was killed, or a power failure undid its work. Any other failure would happen again.
function wasInterrupted({ exitCode = 0 }: EndedJob): boolean {
  return exitCode === 0 || exitCode > 128
}

async function prepareCopy(parts: RestoreParts, paths: ClusterPaths, spec: RestoreSpec): Promise<string[]> {
  const options = copyOptions(parts, paths, spec)
  const { clusterId, label } = spec.backup
  try {
    const damage =
      (await parts.repository.findMissingBackup(clusterId, label)) ??
      (await parts.repository.findForeignBackup(clusterId, label))
    if (damage !== undefined) return refusalCommand(damagedExitCode, `backup ${label} is damaged: ${damage}`)
    const wal = await parts.repository.planWal(spec.pieces, parseLsn(spec.backup.startLsn))
    const manifest = readUntrustedFile(options.backup, 'backup_manifest', maxManifestBytes)?.toString() ?? ''
    await ensureClusterDirectory(parts.home, paths)
    ensureDirectory(copyDirectory(paths), { mode: 0o700, uid: spec.uid })
    ensureFile(planFile(paths), renderPlan(wal, manifestBytes(manifest)), { mode: 0o644 })
    const archives = wal.map(({ path }) => dirname(path))
    return confineCopy(parts, spec, copyCommand(options), options, [options.plan, ...new Set(archives)])
  } catch (error) {
    const { message } = error as Error
    if (!(error instanceof WalFileError)) return refusalCommand(1, message)
    return refusalCommand(damagedWalExitCode, `wal ${error.kind} ${error.file}`, message)
  }
}

async function verificationCommand(parts: RestoreParts, paths: ClusterPaths, spec: RestoreSpec): Promise<string[]> {
  const { clusterId, label } = spec.backup
  const missing = await parts.repository.findMissingBackup(clusterId, label)
  if (missing !== undefined) return refusalCommand(damagedExitCode, `backup ${label} is damaged: ${missing}`)
  const options = { ...copyOptions(parts, paths, spec), isCopied: true }
  return confineCopy(parts, spec, copyCommand(options), options, [])
}

/** The job reads files of another cluster, which have another owner, and writes as the user of the new one. */
async function confineCopy(
  { home }: RestoreParts,
  { uid, toolchain }: RestoreSpec,
  command: string[],
  { backup, directory }: CopyOptions,
  others: string[],
): Promise<string[]> {
  return confineJob(home, command, {
    user: uid === undefined ? undefined : { uid, gid: uid },
    keep: ['dac_read_search'],
    readable: [...programPaths(toolchain), backup, ...others],
    writable: [directory],
  })
}

function copyOptions({ repository }: RestoreParts, paths: ClusterPaths, spec: RestoreSpec): CopyOptions {
  const { clusterId, label } = spec.backup
  return {
    directory: copyDirectory(paths),
    isCopied: false,
    backup: repository.backupData(clusterId, label),
    label,
    plan: planFile(paths),
    settings: recoverySettings(spec.timeline),
    verifier: `${spec.toolchain.tools}/pg_verifybackup`,
    trusted: spec.trusted ?? false,
  }
}

async function inspectCopy({ home, jobs }: RestoreParts, id: string, timeoutSeconds: number): Promise<CopyState> {
  const paths = clusterPaths(home, id)
  if (await waitUntil(() => takeCopy(paths), timeoutSeconds)) return { is: 'done' }
  const job = await jobs.inspectJob(paths.copyJob)
  if (job.is === 'running') return measureCopy(paths)
  // Checked again, because the job may have finished since the first check.
  if (takeCopy(paths)) return { is: 'done' }
  if (job.is === 'absent') return { is: 'absent' }
  return failureOf(job)
}

async function inspectVerification({ home, jobs }: RestoreParts, id: string): Promise<VerificationState> {
  const paths = clusterPaths(home, id)
  if (!isUnverified(paths)) return { is: 'passed' }
  const job = await jobs.inspectJob(paths.copyJob)
  return job.is === 'ended' && isDamage(job) ? failureOf(job) : { is: 'running' }
}

async function measureCopy(paths: ClusterPaths): Promise<CopyState> {
  const bytesTotal = planBytes(readTextIfPresent(planFile(paths)) ?? '0')
  // du complains if a file disappears while it runs, but its sum is still good enough.
  const script = 'du -sbc -- "$1"* 2>/dev/null | tail -n 1'
  const { stdout: copied } = await run('sh', ['-c', script, 'measure', `${copyDirectory(paths)}/${temporaryPrefix}`])
  const log = readUntrustedFile(copyDirectory(paths), verifierLog, maxLogBytes)?.toString().trimEnd()
  const verified = log?.split(/[\r\n]/).at(-1) ?? ''
  return {
    is: 'running',
    bytesDone: Math.min(Number.parseInt(copied, 10) || 0, bytesTotal),
    bytesTotal,
    // `  231768/1049347 kB (22%) verified`
    bytesVerified: (Number.parseInt(verified, 10) || 0) * 1024,
  }
}

function failureOf(job: EndedJob): RestoreFailure {
  const reason = explainEnd(job)
  if (isDamage(job)) return { is: 'failed', reason, damage: reason.replace(/^backup \S+ is damaged: /, '') }
  const hole = job.exitCode === damagedWalExitCode ? findHole(job, reason) : undefined
  return { is: 'failed', reason, ...(hole && { hole }) }
}

function findHole(job: EndedJob, reason: string): WalHole | undefined {
  const [, kind, file] = job.log.map((line) => damagedWalPattern.exec(stripLogTime(line))).find(Boolean) ?? []
  return file === undefined ? undefined : holeOfFile(file, kind as WalHole['kind'], reason)
}

function explainEnd(job: EndedJob): string {
  const lines = job.log.map(stripLogTime)
  if (lines.some(isDiskFull)) return 'the disk is full'
  if (wasInterrupted(job)) return 'the copy was interrupted'
  return lines.at(-1) ?? `the copy ended with exit code ${job.exitCode}`
}

async function removeCopy({ home, jobs }: RestoreParts, id: string): Promise<void> {
  const paths = clusterPaths(home, id)
  // First, so that no more files are created.
  await jobs.removeJob(paths.copyJob)
  if (!existsSync(paths.directory)) return
  rmSync(planFile(paths), { force: true })
  const directory = copyDirectory(paths)
  for (const name of listUntrustedDirectory(paths.directory, basename(directory), maxEntries)) {
    if (name === unverifiedMark) continue
    if (name === 'data' || name.startsWith(temporaryPrefix)) moveToTrash(home, `${directory}/${name}`)
    else rmSync(`${directory}/${name}`, { recursive: true, force: true })
  }
  if (!isUnverified(paths)) rmSync(directory, { recursive: true, force: true })
  emptyTrash(home)
}
