// What a server that recovers says in its log. s6 starts it again when it fails, and a second life may have other
// settings, so its lines carry a mark that comes with the settings.
import { randomBytes } from 'node:crypto'
import { withoutTime } from '../../s6/job.ts'
import { renderSettings } from '../settings.ts'
import type { RecoveryTarget } from './wal.ts'

/**
 * For postgresql.auto.conf, so that the arguments of the server are those of its later life. Nothing that has the right
 * value by itself, such as hot_standby and recovery_target_inclusive: PostgreSQL complains at every reload about each of
 * these that is no longer there.
 */
export function recoverySettings(target: RecoveryTarget, timeline: number): string {
  return renderSettings({
    // It must have one. Everything lies in pg_wal.
    restore_command: 'false',
    recovery_target_timeline: String(timeline),
    ...(target.kind === 'time' && { recovery_target_action: 'promote', recovery_target_time: target.time }),
    // The copy is on the disk already, and asking for each of its files takes long.
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

export function hasTimeTarget(settings: string): boolean {
  return /^recovery_target_time = /m.test(settings)
}

export interface LogLine {
  level: string
  text: string
}

/** The lines of the recovering process alone: clients that come too early also leave fatal errors. */
export function recoveryLines(log: string[], mark: string): LogLine[] {
  const form = new RegExp(`^\\[\\d+\\] ${mark} startup\\s*: ([A-Z]+): +(.*)$`)
  return log
    .map((line) => form.exec(withoutTime(line)))
    .filter((match) => match !== null)
    .map((match) => ({ level: match[1]!, text: match[2]! }))
}

/** Why recovery gave up, in its own words. */
export function findFatal(lines: LogLine[]): string | undefined {
  const at = lines.findLastIndex(isFatal)
  if (at < 0) return undefined
  const next = lines[at + 1]
  return next?.level === 'DETAIL' ? `${lines[at]!.text}: ${next.text}` : lines[at]!.text
}

// With this warning it pauses for good: the log asks for more than the settings give.
function isFatal({ level, text }: LogLine): boolean {
  return level === 'FATAL' || level === 'PANIC' || text.startsWith('hot standby is not possible')
}

export const endedEarly = 'recovery ended before configured recovery target was reached'

export function isDiskFull(text: string): boolean {
  return /No space left on device|Disk quota exceeded/i.test(text)
}

/** The place that recovery names once a second. */
export function findReplayedLsn(lines: LogLine[]): string | undefined {
  const line = lines.findLast(({ text }) => text.startsWith('redo in progress'))
  return line && /current LSN: (\S+)/.exec(line.text)?.[1]
}

/** What the reader of the log found where it could read no further. It is the last word before the end of replay. */
export function findComplaint(lines: LogLine[]): string | undefined {
  const complaint = lines[lines.findLastIndex(({ text }) => text.startsWith('redo done at')) - 1]?.text
  return complaint?.startsWith('redo ') ? undefined : complaint
}
