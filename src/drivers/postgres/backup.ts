// Base backups: a plain directory with a manifest of checksums, made by pg_basebackup and read again by pg_verifybackup
// before anybody may rely on it. The work is a job under a fixed name; here it is started, looked at and ended.
import { readFileSync } from 'node:fs'
import { toRfc3339 } from '../../model/time.ts'
import type { Home } from '../host/home.ts'
import type { BackupDescription, Repository } from '../repository/driver.ts'
import { type JobDriver, type JobState, withoutTime } from '../s6/job.ts'
import { clusterPaths } from './paths.ts'
import { superuser } from './template.ts'
import type { Toolchain } from './toolchain/toolchain.ts'
import { ensureTools } from './toolchain/tools.ts'

export interface BackupSpec {
  toolchain: Toolchain
  port: number
  /** Kilobytes a second, from 32 to 1048576. */
  maxRateKb?: number | undefined
  cgroup?: string[] | undefined
}

export interface BackupFacts {
  timeline: number
  startLsn: string
  stopLsn: string
  startedAt: string
  stoppedAt: string
  sizeBytes: number
}

export type BackupState =
  | { is: 'absent' }
  | { is: 'running'; bytesDone: number; bytesTotal: number; bytesVerified?: number }
  | { is: 'failed'; reason: string }
  | ({ is: 'done' } & BackupFacts)

export type ScrubState =
  | { is: 'absent' }
  | { is: 'running' }
  | { is: 'passed' }
  /** It was ended before it could tell. */
  | { is: 'interrupted' }
  | { is: 'failed'; reason: string }

export interface BackupDriver {
  /** One at a time for a cluster: what another label left unfinished is ended. */
  startBackup(id: string, label: string, spec: BackupSpec): Promise<void>
  /** `done` means made, durable and verified; that the archive reaches its end is for the caller to see. */
  inspectBackup(id: string, label: string): Promise<BackupState>
  finishBackup(description: BackupDescription): Promise<void>
  /** Nothing is left of an unfinished backup. */
  abandonBackup(id: string, label: string): Promise<void>
  /** Reads a kept backup from the disk and compares it with its checksums. Nothing when a scrub of the cluster is there. */
  startScrub(id: string, label: string, toolchain: Toolchain): Promise<void>
  inspectScrub(id: string): Promise<ScrubState>
  removeScrub(id: string): Promise<void>
}

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
    inspectScrub: async (id) => scrubState(await jobs.inspectJob(jobOf(home, 'scrub', id))),
    removeScrub: (id) => jobs.removeJob(jobOf(home, 'scrub', id)),
  }
}

// Through the paths of the cluster, which refuse what is no id.
function jobOf(home: Home, kind: 'backup' | 'scrub', id: string): string {
  return `${kind}-${clusterPaths(home, id).service.slice('pg-'.length)}`
}

const failures: Record<number, string> = {
  10: 'Its place in the repository is gone',
  11: 'The copy failed',
  12: 'The copy could not be made durable',
  13: 'The copy differs from its checksums',
}

// The clock of the cluster, because it is the same machine. The copy is made durable while it is read again: the first
// waits for the disk and the second for the processor.
const backupScript = `
  cd "$1" || exit 10
  tools=$2
  shift 2
  rm -rf data started_at stopped_at || exit 12
  date -u +%s%6N > started_at || exit 12
  "$tools/pg_basebackup" "$@" || exit 11
  date -u +%s%6N > stopped_at || exit 12
  sync -f . &
  nice -n 10 "$tools/pg_verifybackup" --no-parse-wal --progress data || exit 13
  wait $! || exit 12`

function copyOptions(home: Home, id: string, label: string, spec: BackupSpec): string[] {
  return [
    '--pgdata=data',
    `--label=${label}`,
    // The archive has the log.
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

// The job of a cluster belongs to what is staged: at most one label, and without it the job is of one that is over.
async function startBackup(parts: BackupParts, id: string, label: string, spec: BackupSpec): Promise<void> {
  const { home, jobs, repository } = parts
  if (await repository.findBackup(id, label)) return
  const tools = await ensureTools(spec.toolchain)
  const staged = await repository.listStaged(id)
  if (!staged.includes(label)) {
    await jobs.removeJob(jobOf(home, 'backup', id))
    for (const other of staged) await repository.discardStaged(id, other)
    await repository.stageBackup(id, label)
  }
  const place = repository.stagedBackup(id, label)
  await jobs.ensureJob(jobOf(home, 'backup', id), {
    command: ['/bin/sh', '-c', backupScript, 'backup', place, tools, ...copyOptions(home, id, label, spec)],
    env: { PGAPPNAME: 'berth-backup' },
    niceness: 10,
    cgroup: spec.cgroup,
  })
}

async function finishBackup({ home, jobs, repository }: BackupParts, description: BackupDescription): Promise<void> {
  await repository.commitBackup(description)
  const { clusterId } = description
  if ((await repository.listStaged(clusterId)).length === 0) await jobs.removeJob(jobOf(home, 'backup', clusterId))
}

async function abandonBackup({ home, jobs, repository }: BackupParts, id: string, label: string): Promise<void> {
  const staged = await repository.listStaged(id)
  if (staged.length === 0 || staged.includes(label)) await jobs.removeJob(jobOf(home, 'backup', id))
  await repository.discardStaged(id, label)
}

async function inspectBackup({ home, jobs, repository }: BackupParts, id: string, label: string): Promise<BackupState> {
  if (!(await repository.listStaged(id)).includes(label)) {
    // Whoever finished it may have died before he could say so.
    const kept = await repository.findBackup(id, label)
    return kept ? { is: 'done', ...factsOf(kept) } : { is: 'absent' }
  }
  const job = jobOf(home, 'backup', id)
  const state = await jobs.inspectJob(job)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'running') return progressOf(jobs.readJobLog(job, progressLines))
  if (state.exitCode === 0) return { is: 'done', ...readFacts(repository.stagedBackup(id, label)) }
  return { is: 'failed', reason: reasonOf(state, failures) }
}

function factsOf({ timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes }: BackupDescription): BackupFacts {
  return { timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes }
}

// One line a second from pg_basebackup: `  231768/1049347 kB (22%), 0/1 tablespace`, and then from pg_verifybackup:
// `  231768/1049347 kB (22%) verified`.
const progressForm = /^\s*(\d+)\/(\d+) kB \(\d+%\)( verified)?/
const progressLines = 5

function progressOf(log: string[]): BackupState {
  const line = log.map(withoutTime).findLast((each) => progressForm.test(each))
  const [, done = 0, total = 0, verified] = line?.match(progressForm) ?? []
  const [bytes, bytesTotal] = [Number(done) * 1024, Number(total) * 1024]
  // What is being verified has all arrived.
  if (verified) return { is: 'running', bytesDone: bytesTotal, bytesTotal, bytesVerified: bytes }
  return { is: 'running', bytesDone: bytes, bytesTotal }
}

const reasonLines = 3
// What pg_basebackup says besides how far it is and what went wrong.
const chatter = /^(waiting for checkpoint|pg_basebackup: removing )/

function reasonOf(state: JobState & { is: 'ended' }, known: Record<number, string>): string {
  const ended = state.signal ?? (state.exitCode === undefined ? 'a crash' : `exit code ${state.exitCode}`)
  const what = (state.exitCode !== undefined && known[state.exitCode]) || `It was ended by ${ended}`
  const words = state.log.map((line) => withoutTime(line).trim())
  const telling = words.filter((line) => !progressForm.test(line) && !chatter.test(line))
  // An error may go on in further lines.
  const error = telling.findLastIndex((line) => /^\S+: error: /.test(line))
  const reasons = error < 0 ? telling.slice(-reasonLines) : [telling.slice(error, error + reasonLines).join(' ')]
  return [what, ...reasons].join(': ')
}

interface Manifest {
  Files: { Size: number }[]
  'WAL-Ranges': { Timeline: number; 'Start-LSN': string; 'End-LSN': string }[]
}

function readFacts(directory: string): BackupFacts {
  const manifest: Manifest = JSON.parse(readFileSync(`${directory}/data/backup_manifest`, 'utf8'))
  const ranges = manifest['WAL-Ranges']
  // A running cluster stays on its timeline, and a second range would be of another.
  const [range] = ranges
  if (range === undefined || ranges.length > 1)
    throw new Error(`The backup in ${directory} spans ${ranges.length} timelines`)
  const clock = (file: string) => toRfc3339(BigInt(readFileSync(`${directory}/${file}`, 'utf8').trim()))
  return {
    timeline: range.Timeline,
    startLsn: range['Start-LSN'],
    stopLsn: range['End-LSN'],
    startedAt: clock('started_at'),
    stoppedAt: clock('stopped_at'),
    sizeBytes: manifest.Files.reduce((sum, file) => sum + file.Size, 0),
  }
}

// What memory still holds of the files is dropped first: the disk is in question.
const scrubScript = `
  cd "$1" || exit 10
  find . -type f -exec dd if={} iflag=nocache count=0 status=none \\;
  exec "$2/pg_verifybackup" --no-parse-wal --quiet .`

async function startScrub({ home, jobs, repository }: BackupParts, id: string, label: string, toolchain: Toolchain) {
  const tools = await ensureTools(toolchain)
  await jobs.ensureJob(jobOf(home, 'scrub', id), {
    command: ['/bin/sh', '-c', scrubScript, 'scrub', repository.backupData(id, label), tools],
    niceness: 19,
  })
}

function scrubState(state: JobState): ScrubState {
  if (state.is !== 'ended') return { is: state.is }
  if (state.exitCode === 0) return { is: 'passed' }
  const words: Record<number, string> = { 1: 'The backup differs from its checksums', 10: failures[10]! }
  if (words[state.exitCode ?? 0] === undefined) return { is: 'interrupted' }
  return { is: 'failed', reason: reasonOf(state, words) }
}
