// Follows a restored cluster from its first start to its promotion.
import { isDiskFull } from '../../../model/disk-full.ts'
import type { WalHole } from '../../../model/postgres/damage.ts'
import { formatLsn, historyName, type Lsn, segmentNumber, segmentStart } from '../../../model/postgres/wal.ts'
import type { Home } from '../../host/home.ts'
import { readUntrustedFile } from '../../host/untrusted-file.ts'
import type { Supervisor } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import type { PostgresDriver } from '../driver.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import { superuser } from '../sql/platform-role.ts'
import type { RecoveryState, RestoreSpec } from './driver.ts'
import { endedEarly, findFatal, findMark, findReadError, findReplayedLsn, type LogLine, recoveryLines } from './log.ts'
import { findShortfall, readTimelineStart, type TimelineStart } from './wal.ts'

export interface RecoveryParts {
  home: Home
  supervisor: Supervisor
  postgres: Pick<PostgresDriver, 'inspect' | 'query'>
}

// Enough for several minutes of a server that fails and restarts every other second.
const logLines = 2000

export async function inspectRecovery(parts: RecoveryParts, id: string, spec: RestoreSpec): Promise<RecoveryState> {
  const paths = clusterPaths(parts.home, id)
  const server = await parts.postgres.inspect(id)
  const progress = server.is === 'ready' ? await queryProgress(parts, id) : undefined
  const lines = readLines(parts, paths)
  if (progress?.recovering === false) return checkEnd(await findTimelineStart(parts, id), spec, lines, progress.until)
  const fatal = findFatal(lines)
  if (fatal !== undefined) return explainFatal(fatal, spec)
  return {
    is: 'replaying',
    replayedUntil: progress?.until ?? null,
    // Only a server that does not answer queries yet: the last position in the log is older than the last answer.
    replayedLsn: progress === undefined ? (findReplayedLsn(lines) ?? null) : progress.lsn,
    ...(server.is === 'stopped' && { problem: explainStop(server.log) }),
  }
}

function explainStop(log: string[]): string {
  const last = log.map(stripLogTime).findLast((line) => line !== '')
  return last === undefined ? 'PostgreSQL is not running' : `PostgreSQL is not running: ${last}`
}

interface Progress extends Record<string, unknown> {
  recovering: boolean
  lsn: string | null
  until: string | null
}

// The server accepts queries once it has replayed the WAL of the backup itself. Replay may cancel the query because of a
// conflict; the next call tries again.
async function queryProgress({ postgres }: RecoveryParts, id: string): Promise<Progress> {
  const query = `select pg_is_in_recovery() as recovering, pg_last_wal_replay_lsn()::text as lsn,
    pg_last_xact_replay_timestamp()::text as until`
  const rows = await postgres.query<Progress>(id, superuser, query).catch(() => [])
  return rows[0] ?? { recovering: true, lsn: null, until: null }
}

const settingsName = 'postgresql.auto.conf'
const maxFileBytes = 1024 ** 2

// Tenants cannot write these files by SQL, but they belong to the user that their server runs as.
function readDataFile(paths: ClusterPaths, file: string): string | undefined {
  return readUntrustedFile(paths.data, file, maxFileBytes)?.toString()
}

function readLines({ supervisor }: RecoveryParts, paths: ClusterPaths): LogLine[] {
  const mark = findMark(readDataFile(paths, settingsName) ?? '')
  return mark === undefined ? [] : recoveryLines(supervisor.readLog(paths.service, logLines), mark)
}

function checkEnd(
  start: TimelineStart,
  spec: RestoreSpec,
  lines: LogLine[],
  replayedUntil: string | null,
): RecoveryState {
  const { lsn, timeline } = start
  const shortfall = findShortfall(start, spec)
  if (shortfall === undefined) return { is: 'promoted', endLsn: formatLsn(lsn), timeline, replayedUntil }
  const readError = findReadError(lines)
  const reason = readError === undefined ? shortfall : `${shortfall} (${readError})`
  if (start.parent !== spec.timeline) return { is: 'failed', reason }
  return { is: 'failed', reason, hole: holeAt(lsn, spec.timeline, reason) }
}

/** The hole ends with the segment: whatever follows in it cannot be replayed without what is damaged. */
function holeAt(lsn: Lsn, timeline: number, reason: string): WalHole {
  const toLsn = formatLsn(segmentStart(segmentNumber(lsn) + 1n))
  return { timeline, fromLsn: formatLsn(lsn), toLsn, kind: 'damaged', reason }
}

// pg_control contains the new timeline only after the next checkpoint, so it is taken from the name of the WAL file.
async function findTimelineStart({ home, postgres }: RecoveryParts, id: string): Promise<TimelineStart> {
  const [row] = await postgres.query<{ file: string }>(
    id,
    superuser,
    'select pg_walfile_name(pg_current_wal_insert_lsn()) as file',
  )
  const timeline = Number.parseInt(row!.file.slice(0, 8), 16)
  const history = readDataFile(clusterPaths(home, id), `pg_wal/${historyName(timeline)}`)
  if (history === undefined)
    throw new Error(`cluster ${id} runs on timeline ${timeline}, but its history file is missing`)
  return readTimelineStart(timeline, history)
}

function explainFatal(fatal: string, spec: RestoreSpec): RecoveryState {
  if (isDiskFull(fatal)) return { is: 'failed', reason: 'the disk is full' }
  if (fatal === endedEarly) {
    const { label, startLsn, stopLsn } = spec.backup
    const reason = `the write-ahead log is damaged before ${stopLsn}, the end of backup ${label}`
    // The position is not known, but all of this WAL is needed.
    const hole = {
      timeline: spec.pieces[0]!.timeline,
      fromLsn: startLsn,
      toLsn: stopLsn,
      kind: 'damaged',
      reason,
    } as const
    return { is: 'failed', reason, hole }
  }
  return { is: 'failed', reason: `recovery failed: ${fatal}` }
}

export async function finishRecovery(parts: RecoveryParts, id: string, spec: RestoreSpec): Promise<void> {
  const state = await inspectRecovery(parts, id, spec)
  if (state.is === 'failed') throw new Error(state.reason)
  if (state.is !== 'promoted') throw new Error(`cluster ${id} has not recovered: its state is ${state.is}`)
  const settings = readDataFile(clusterPaths(parts.home, id), settingsName) ?? ''
  // The mark disappears with the recovery settings, so settings of a later ALTER SYSTEM are not reset.
  if (findMark(settings) !== undefined) await parts.postgres.query(id, superuser, 'ALTER SYSTEM RESET ALL')
  await parts.postgres.query(id, superuser, 'select pg_reload_conf()')
}
