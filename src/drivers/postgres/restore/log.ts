// The messages of a server in recovery. s6 restarts it after a failure, so the recovery settings put a random mark into the log prefix that identifies the lines of the current attempt.
import { randomBytes } from 'node:crypto'
import { stripLogTime } from '../../s6/job.ts'
import { renderSettings } from '../settings.ts'

/**
 * Renders postgresql.auto.conf for a recovery. There is no recovery target: the WAL in pg_wal ends at it. The settings are not passed as arguments, which stay the same after the
 * promotion. Settings whose default is right, such as hot_standby and recovery_target_inclusive, are left out: PostgreSQL
 * complains at every reload about each of them that has disappeared from the file.
 */
export function recoverySettings(timeline: number): string {
  return renderSettings({
    // Required by PostgreSQL, although all WAL is in pg_wal already.
    restore_command: 'false',
    recovery_target_timeline: String(timeline),
    // The copy has been flushed already; syncing each of its files would take long.
    recovery_init_sync_method: 'syncfs',
    synchronous_standby_names: '',
    log_startup_progress_interval: '1s',
    log_line_prefix: `[%p] ${newMark()} %b: `,
  })
}

function newMark(): string {
  return `recovery-${randomBytes(6).toString('hex')}`
}

export function findMark(settings: string): string | undefined {
  return /^log_line_prefix = .*(recovery-[0-9a-f]{12})/m.exec(settings)?.[1]
}

export interface LogLine {
  level: string
  text: string
}

/** Selects the lines of the startup process, because clients that connect too early cause FATAL lines too. */
export function recoveryLines(log: string[], mark: string): LogLine[] {
  const pattern = new RegExp(`^\\[\\d+\\] ${mark} startup\\s*: ([A-Z]+): +(.*)$`)
  return log
    .map((line) => pattern.exec(stripLogTime(line)))
    .filter((match) => match !== null)
    .map((match) => ({ level: match[1]!, text: match[2]! }))
}

/** The message with which recovery gave up. */
export function findFatal(lines: LogLine[]): string | undefined {
  const at = lines.findLastIndex(isFatal)
  if (at < 0) return undefined
  const next = lines[at + 1]
  return next?.level === 'DETAIL' ? `${lines[at]!.text}: ${next.text}` : lines[at]!.text
}

// After this warning recovery pauses for ever: the WAL needs higher settings than those of the server.
function isFatal({ level, text }: LogLine): boolean {
  return level === 'FATAL' || level === 'PANIC' || text.startsWith('hot standby is not possible')
}

export const endedEarly = 'recovery ended before configured recovery target was reached'

/** The position that recovery reports once a second. */
export function findReplayedLsn(lines: LogLine[]): string | undefined {
  const line = lines.findLast(({ text }) => text.startsWith('redo in progress'))
  return line && /current LSN: (\S+)/.exec(line.text)?.[1]
}

/** The error at which PostgreSQL stopped reading WAL: the last message before the end of replay. */
export function findReadError(lines: LogLine[]): string | undefined {
  const message = lines[lines.findLastIndex(({ text }) => text.startsWith('redo done at')) - 1]?.text
  return message?.startsWith('redo ') ? undefined : message
}
