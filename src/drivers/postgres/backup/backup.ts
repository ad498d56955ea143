// Base backups: plain directories with a manifest of checksums, written by pg_basebackup and verified by pg_verifybackup
// before they count. The work is done by a job, which survives the control plane.
import { describeError } from '../../../model/errors.ts'
import type { Toolchain } from '../../../model/postgres/toolchain.ts'
import { formatLsn, parseLsn } from '../../../model/postgres/wal.ts'
import { toRfc3339 } from '../../../model/time.ts'
import { confineJob, missingPathCode } from '../../confine/confine.ts'
import type { Home } from '../../host/home.ts'
import { readUntrustedFile } from '../../host/untrusted-file.ts'
import type { BackupDescription, Repository, SealedFiles } from '../../repository/driver.ts'
import type { JobDriver, JobState } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import { clientConfinement, programPaths } from '../confinement.ts'
import { clusterPaths } from '../paths.ts'
import { scriptCommand } from '../script.ts'
import { superuser } from '../sql/platform-role.ts'
import { ensureTools } from '../toolchain/tools.ts'
import { clusterUsers, readerUser } from '../users.ts'
import type { BackupDriver, BackupFacts, BackupSpec, BackupState, LogScrubState, ScrubState } from './driver.ts'

export interface BackupParts {
  home: Home
  jobs: JobDriver
  repository: Repository
}

export function backupDriver(parts: BackupParts): BackupDriver {
  const { home, jobs } = parts
  return {
    startBackup: (id, label, spec) => startBackup(parts, id, label, spec),
    inspectBackup: (id, label) => inspectBackup(parts, id, label),
    finishBackup: (description) => finishBackup(parts, description),
    abandonBackup: (id, label) => abandonBackup(parts, id, label),
    startScrub: (id, label, toolchain) => startScrub(parts, id, label, toolchain),
    inspectScrub: async (id) => scrubState(await jobs.inspectJob(clusterPaths(home, id).scrubJob)),
    startLogScrub: (id, archive) => startLogScrub(parts, id, archive),
    inspectLogScrub: async (id) => logScrubState(await jobs.inspectJob(clusterPaths(home, id).scrubJob)),
    removeScrub: (id) => jobs.removeJob(clusterPaths(home, id).scrubJob),
  }
}

/** Explains the exit codes of backup.sh and scrub.sh. */
const failures: Record<number, string> = {
  10: 'Its directory in the repository is gone',
  [missingPathCode]: 'Its directory in the repository is gone',
  11: 'The copy failed',
  12: 'The copy could not be made durable',
  13: 'The copy differs from its checksums',
}

function copyOptions(home: Home, id: string, label: string, spec: BackupSpec): string[] {
  return [
    '--pgdata=data',
    `--label=${label}`,
    // The archive has the WAL.
    '--wal-method=none',
    '--checkpoint=fast',
    '--manifest-checksums=CRC32C',
    '--no-sync',
    '--progress',
    `--host=${clusterPaths(home, id).sockets}`,
    `--port=${spec.port}`,
    `--username=${superuser}`,
    '--no-password',
    ...(spec.maxRateKb === undefined ? [] : [`--max-rate=${spec.maxRateKb}`]),
  ]
}

// A cluster has at most one staged backup, and the job belongs to it. A job without it is left over from an earlier one.
async function startBackup(parts: BackupParts, id: string, label: string, spec: BackupSpec): Promise<void> {
  const { home, jobs, repository } = parts
  if (await repository.findBackup(id, label)) return
  const { backupJob } = clusterPaths(home, id)
  const tools = await ensureTools(spec.toolchain)
  const { keeper } = await clusterUsers(spec.uid)
  const staged = await repository.listStaged(id)
  if (!staged.includes(label)) {
    await jobs.removeJob(backupJob)
    for (const other of staged) await repository.discardStaged(id, other)
    await repository.stageBackup(id, label, keeper?.uid)
  }
  const directory = repository.stagedBackup(id, label)
  const options = copyOptions(home, id, label, spec)
  const copy = scriptCommand('postgres/backup/backup.sh', directory, tools, ...options)
  const confinement = { ...clientConfinement(clusterPaths(home, id), keeper, spec.toolchain), writable: [directory] }
  await jobs.ensureJob(backupJob, {
    command: await confineJob(home, copy, confinement),
    env: { PGAPPNAME: 'berth-backup' },
    niceness: 10,
    cgroup: spec.cgroup,
  })
}

async function finishBackup({ home, jobs, repository }: BackupParts, description: BackupDescription): Promise<void> {
  await repository.commitBackup(description)
  const { clusterId } = description
  const isIdle = (await repository.listStaged(clusterId)).length === 0
  if (isIdle) await jobs.removeJob(clusterPaths(home, clusterId).backupJob)
}

async function abandonBackup({ home, jobs, repository }: BackupParts, id: string, label: string): Promise<void> {
  const staged = await repository.listStaged(id)
  if (staged.length === 0 || staged.includes(label)) await jobs.removeJob(clusterPaths(home, id).backupJob)
  await repository.discardStaged(id, label)
}

async function inspectBackup({ home, jobs, repository }: BackupParts, id: string, label: string): Promise<BackupState> {
  if (!(await repository.listStaged(id)).includes(label)) {
    // A worker may have committed it and died before it recorded that.
    const kept = await repository.findBackup(id, label)
    return kept ? { is: 'done', ...factsOf(kept) } : { is: 'absent' }
  }
  const { backupJob } = clusterPaths(home, id)
  const state = await jobs.inspectJob(backupJob)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'running') return progressOf(jobs.readJobLog(backupJob, progressLines))
  if (state.exitCode === 0) return describeStaged(repository.stagedBackup(id, label))
  return { is: 'failed', reason: reasonOf(state, failures) }
}

function factsOf({ timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes }: BackupDescription): BackupFacts {
  return { timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes }
}

// pg_basebackup prints a line per second: `  231768/1049347 kB (22%), 0/1 tablespace`. Then pg_verifybackup does:
// `  231768/1049347 kB (22%) verified`.
const progressPattern = /^\s*(\d+)\/(\d+) kB \(\d+%\)( verified)?/
const progressLines = 5

function progressOf(log: string[]): BackupState {
  const line = log.map(stripLogTime).findLast((each) => progressPattern.test(each))
  const [, done = 0, total = 0, verified] = line?.match(progressPattern) ?? []
  const [bytes, bytesTotal] = [Number(done) * 1024, Number(total) * 1024]
  // Verification starts after the whole copy.
  if (verified) return { is: 'running', bytesDone: bytesTotal, bytesTotal, bytesVerified: bytes }
  return { is: 'running', bytesDone: bytes, bytesTotal }
}

const reasonLines = 3
// Messages of pg_basebackup that are neither progress nor errors.
const irrelevant = /^(waiting for checkpoint|pg_basebackup: removing )/

function reasonOf(state: JobState & { is: 'ended' }, known: Record<number, string>): string {
  const ending = state.signal ?? (state.exitCode === undefined ? 'a crash' : `exit code ${state.exitCode}`)
  const summary = (state.exitCode !== undefined && known[state.exitCode]) || `It ended with ${ending}`
  const lines = state.log
    .map((line) => stripLogTime(line).trim())
    .filter((line) => !progressPattern.test(line) && !irrelevant.test(line))
  // The message of an error may continue on further lines.
  const error = lines.findLastIndex((line) => /^\S+: error: /.test(line))
  const reasons = error < 0 ? lines.slice(-reasonLines) : [lines.slice(error, error + reasonLines).join(' ')]
  return [summary, ...reasons].join(': ')
}

// A manifest has about 150 bytes for each file of the cluster.
export const maxManifestBytes = 128 * 1024 ** 2
const maxClockBytes = 100

interface Manifest {
  Files: { Size: number }[]
  'WAL-Ranges': { Timeline: number; 'Start-LSN': string; 'End-LSN': string }[]
}

function describeStaged(directory: string): BackupState {
  try {
    return { is: 'done', ...readFacts(directory) }
  } catch (error) {
    return { is: 'failed', reason: `Its manifest is not usable: ${describeError(error)}` }
  }
}

function readFacts(directory: string): BackupFacts {
  const manifest: Manifest = JSON.parse(readStaged(directory, 'data/backup_manifest', maxManifestBytes))
  const ranges = manifest['WAL-Ranges']
  // A running cluster does not change its timeline, so there is one range.
  const [range] = ranges
  if (range === undefined || ranges.length > 1)
    throw new Error(`The backup in ${directory} spans ${ranges.length} timelines`)
  const clock = (file: string) => toRfc3339(BigInt(readStaged(directory, file, maxClockBytes).trim()))
  const sizeBytes = manifest.Files.reduce((sum, file) => sum + file.Size, 0)
  if (![range.Timeline, sizeBytes].every((value) => Number.isSafeInteger(value) && value > 0))
    throw new Error('its numbers are not valid')
  return {
    timeline: range.Timeline,
    startLsn: formatLsn(parseLsn(range['Start-LSN'])),
    stopLsn: formatLsn(parseLsn(range['End-LSN'])),
    startedAt: clock('started_at'),
    stoppedAt: clock('stopped_at'),
    sizeBytes,
  }
}

// A server of a tenant has written these files, by way of pg_basebackup.
function readStaged(directory: string, file: string, maxBytes: number): string {
  const bytes = readUntrustedFile(directory, file, maxBytes)
  if (bytes === undefined) throw new Error(`The backup in ${directory} lacks ${file}`)
  return bytes.toString()
}

async function startScrub({ home, jobs, repository }: BackupParts, id: string, label: string, toolchain: Toolchain) {
  const tools = await ensureTools(toolchain)
  const data = repository.backupData(id, label)
  const damage = await repository.findForeignBackup(id, label)
  const command = scriptCommand('postgres/backup/scrub.sh', data, tools, damage ?? '')
  await jobs.ensureJob(clusterPaths(home, id).scrubJob, {
    command: await confineJob(home, command, {
      user: readerUser(home),
      keep: ['dac_read_search'],
      readable: [...programPaths(toolchain), data],
    }),
    niceness: 19,
  })
}

const scrubFailures: Record<number, string> = {
  20: 'The backup differs from its checksums',
  10: failures[10]!,
  [missingPathCode]: failures[10]!,
}

function scrubState(state: JobState): ScrubState {
  if (state.is !== 'ended') return { is: state.is }
  if (state.exitCode === 0) return { is: 'passed' }
  if (scrubFailures[state.exitCode ?? 0] === undefined) return { is: 'interrupted' }
  return { is: 'failed', reason: reasonOf(state, scrubFailures) }
}

async function startLogScrub({ home, jobs }: BackupParts, id: string, { directory, files }: SealedFiles) {
  const lines = files.map(({ name, sha256 }) => `${sha256} ${name}`).join('\n')
  const command = scriptCommand('postgres/backup/scrub-wal.sh', directory, lines)
  await jobs.ensureJob(clusterPaths(home, id).scrubJob, {
    command: await confineJob(home, command, {
      user: readerUser(home),
      keep: ['dac_read_search'],
      readable: [directory],
    }),
    niceness: 19,
  })
}

function logScrubState(state: JobState): LogScrubState {
  if (state.is !== 'ended') return { is: state.is }
  const [, result, file, reason = ''] = /^(verified|damaged|missing) (\S+) ?(.*)$/.exec(lastLine(state.log)) ?? []
  if (state.exitCode === 0 && result === 'verified') return { is: 'passed', file: file! }
  const isFound = state.exitCode === 20 && (result === 'damaged' || result === 'missing')
  return isFound ? { is: 'failed', file: file!, kind: result, reason } : { is: 'interrupted' }
}

function lastLine(log: string[]): string {
  return stripLogTime(log.at(-1) ?? '').trim()
}
