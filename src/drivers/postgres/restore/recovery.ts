// The life of a restored cluster between its first start and its promotion.

import { formatLsn, historyName } from '../../../model/postgres/wal.ts'
import { readTextIfPresent } from '../../host/file.ts'
import { run } from '../../host/process.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import { superuser } from '../template.ts'
import {
  endedEarly,
  findComplaint,
  findFatal,
  findMark,
  findReplayedLsn,
  hasTimeTarget,
  isDiskFull,
  type LogLine,
  recoveryLines,
  recoverySettings,
} from './log.ts'
import type { RecoveryState, RestoreParts, RestoreSpec } from './restore.ts'
import { replaceCommand } from './script.ts'
import { findShortfall, readTimelineStart, type TimelineStart } from './wal.ts'

// More than the lives of several minutes leave, when it fails every other second.
const logLines = 2000

export async function inspectRecovery(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<RecoveryState> {
  const paths = clusterPaths(parts.home, id)
  const answer = await askServer(parts, id)
  const lines = readLines(parts, paths)
  if (answer?.recovering === false) return judge(await findTimelineStart(parts, id), spec, lines, answer.until)
  const fatal = findFatal(lines)
  if (fatal !== undefined) return explainFatal(fatal, spec)
  return {
    is: 'replaying',
    replayedUntil: answer?.until ?? null,
    replayedLsn: answer?.lsn ?? findReplayedLsn(lines) ?? null,
  }
}

interface Answer extends Record<string, unknown> {
  recovering: boolean
  lsn: string | null
  until: string | null
}

// It takes questions as soon as it has come to the end of the backup. Replay ends the sessions that are in its way; what
// they would have said is said at the next look.
async function askServer({ postgres }: RestoreParts, id: string): Promise<Answer | undefined> {
  if ((await postgres.inspect(id)).is !== 'ready') return undefined
  const question = `select pg_is_in_recovery() as recovering, pg_last_wal_replay_lsn()::text as lsn,
    pg_last_xact_replay_timestamp()::text as until`
  const rows = await postgres.query<Answer>(id, superuser, question).catch(() => [])
  return rows[0]
}

function settingsFile(paths: ClusterPaths): string {
  return `${paths.data}/postgresql.auto.conf`
}

function readLines({ supervisor }: RestoreParts, paths: ClusterPaths): LogLine[] {
  const mark = findMark(readTextIfPresent(settingsFile(paths)) ?? '')
  return mark === undefined ? [] : recoveryLines(supervisor.readLog(paths.service, logLines), mark)
}

function judge(start: TimelineStart, spec: RestoreSpec, lines: LogLine[], replayedUntil: string | null): RecoveryState {
  const { lsn, timeline } = start
  const shortfall = findShortfall(start, spec)
  if (shortfall === undefined) return { is: 'promoted', endLsn: formatLsn(lsn), timeline, replayedUntil }
  const complaint = findComplaint(lines)
  return { is: 'failed', reason: complaint === undefined ? shortfall : `${shortfall} (${complaint})` }
}

// The control file names the new timeline only after the next checkpoint.
async function findTimelineStart({ home, postgres }: RestoreParts, id: string): Promise<TimelineStart> {
  const [row] = await postgres.query<{ file: string }>(
    id,
    superuser,
    'select pg_walfile_name(pg_current_wal_insert_lsn()) as file',
  )
  const timeline = Number.parseInt(row!.file.slice(0, 8), 16)
  const history = readTextIfPresent(`${clusterPaths(home, id).data}/pg_wal/${historyName(timeline)}`)
  if (history === undefined) throw new Error(`cluster ${id} runs on timeline ${timeline} without its history`)
  return readTimelineStart(timeline, history)
}

function explainFatal(fatal: string, spec: RestoreSpec): RecoveryState {
  if (fatal === endedEarly && spec.target.kind === 'time') return { is: 'ended-early' }
  if (isDiskFull(fatal)) return { is: 'failed', reason: 'the disk is full' }
  if (fatal === endedEarly) {
    const { label, stopLsn } = spec.backup
    return { is: 'failed', reason: `the write-ahead log is damaged before ${stopLsn}, the end of backup ${label}` }
  }
  return { is: 'failed', reason: `recovery failed: ${fatal}` }
}

// A second call changes nothing. Stopped before the restart, s6 does it: a server that ended early is started again.
export async function continueToEnd(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<void> {
  const paths = clusterPaths(parts.home, id)
  if (!hasTimeTarget(readTextIfPresent(settingsFile(paths)) ?? '')) return
  const [command, args] = replaceCommand(settingsFile(paths))
  await run(command, args, { uid: spec.uid, input: recoverySettings({ kind: 'end' }, spec.timeline) })
  await parts.supervisor.restartService(paths.service)
}

export async function finishRecovery(parts: RestoreParts, id: string, spec: RestoreSpec): Promise<void> {
  const state = await inspectRecovery(parts, id, spec)
  if (state.is === 'failed') throw new Error(state.reason)
  if (state.is !== 'promoted') throw new Error(`cluster ${id} has not recovered: it is ${state.is}`)
  const settings = readTextIfPresent(settingsFile(clusterPaths(parts.home, id))) ?? ''
  // Only once: settings that somebody makes later are to stay.
  if (findMark(settings) !== undefined) await parts.postgres.query(id, superuser, 'ALTER SYSTEM RESET ALL')
  await parts.postgres.query(id, superuser, 'select pg_reload_conf()')
}
