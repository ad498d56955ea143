import type { Command } from 'commander'
import type { PostgresBackup, PostgresCluster, RecoveryWindow } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { request, type Session } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { formatCount, printResult, sanitize } from '../output.ts'
import { formatSpan, listBackups } from './backup.ts'
import { type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

export function addWindowCommand(postgres: Command, cli: ProgressCli): void {
  const window = withClusterArgument(postgres.command('window'))
    .description('draw the time range to which a cluster can be restored, with its backups')
    .action((nameOrId: string, options: OrgOptions) => printWindow(cli, nameOrId, options))
  addExamples(window, 'berth postgres window shop', 'berth postgres window shop --json')
}

async function printWindow(cli: ProgressCli, nameOrId: string, options: OrgOptions): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  const { data: backups } = await listBackups(session, path)
  const now = await readPlatformClock(session)
  const { recovery_window, recovery_windows } = cluster
  // Some terminals report a width of 0.
  const width = cli.progress.columns || 80
  printResult(cli.terminal(), { data: { recovery_window, recovery_windows, backups } }, () => {
    if (recovery_windows.length === 0) return sanitize(formatNoWindow(cluster, backups))
    return [drawWindow(recovery_windows, backups, width), summaryText(recovery_windows, backups, now)].join('\n')
  })
}

/** Reads the platform's clock in milliseconds, with a precision of a second. The local clock may differ. */
export async function readPlatformClock({ url }: Session): Promise<number> {
  const { headers } = await fetch(`${url}/healthz`, { method: 'GET', signal: AbortSignal.timeout(30_000) })
  const time = Date.parse(headers.get('date') ?? '')
  return Number.isNaN(time) ? Date.now() : time
}

export function formatNoWindow(
  { name, status }: Pick<PostgresCluster, 'name' | 'status'>,
  backups: PostgresBackup[],
): string {
  return `Cluster ${name} cannot be restored to a point in time: ${noWindowReason(status, backups)}.`
}

function noWindowReason(status: string, backups: PostgresBackup[]): string {
  if (status !== 'ready') return `it is ${status}`
  const newest = backups[0]
  if (!newest) return 'its first backup has not started yet'
  if (newest.status === 'failed') return `its backup ${newest.id} failed: ${newest.failure ?? 'for an unknown reason'}`
  if (newest.failure !== undefined) return `its backup ${newest.id} is damaged: ${newest.failure}`
  if (newest.status === 'completed') return `its WAL archive does not extend past backup ${newest.id} yet`
  return `its backup ${newest.id} is ${newest.status}`
}

/** Draws the windows as a line with gaps between them, a mark per completed backup, and the times of both ends. */
export function drawWindow(windows: RecoveryWindow[], backups: PostgresBackup[], width: number): string {
  // A window and the gap before it need a column each. When they do not fit, the oldest are left out.
  const shown = windows.slice(-Math.max(1, Math.floor((width + 1) / 2)))
  const segments = layOut(shown, width)
  const marks = new Set(backups.map((backup) => markColumn(segments, backup)))
  const line = [...segments.map(({ text }) => text).join('')]
  const marked = line.map((character, column) => (marks.has(column) ? '●' : character)).join('')
  return withTimes(marked, shown[0]!, shown.at(-1)!, width)
}

interface Segment {
  text: string
  from: number
  to: number
  isGap: boolean
}

/** Lays out windows and gaps in proportion to their duration, each with at least one column. */
function layOut(windows: RecoveryWindow[], width: number): Segment[] {
  const segments = windows.flatMap((window, index) => {
    const [from, to] = [Date.parse(window.earliest), Date.parse(window.latest)]
    const before = windows[index - 1]
    const gap = before ? [{ from: Date.parse(before.latest), to: from, isGap: true }] : []
    return [...gap, { from, to, isGap: false }]
  })
  const lengths = distribute(
    segments.map(({ from, to }) => to - from),
    Math.max(width, segments.length),
  )
  return segments.map((segment, index) => {
    const length = lengths[index]!
    return { ...segment, text: segment.isGap ? formatGap(length) : windowText(length) }
  })
}

/** Gives each size one column and distributes the remaining columns in proportion. */
function distribute(sizes: number[], columns: number): number[] {
  const total = sizes.reduce((sum, size) => sum + size, 0)
  const spare = columns - sizes.length
  let [sum, nameOrId] = [0, 0]
  return sizes.map((size, index) => {
    sum += size
    const upTo = Math.round((total === 0 ? (index + 1) / sizes.length : sum / total) * spare)
    const length = 1 + upTo - nameOrId
    nameOrId = upTo
    return length
  })
}

function windowText(length: number): string {
  return length === 1 ? '│' : `├${'─'.repeat(length - 2)}┤`
}

function formatGap(length: number): string {
  const label = length >= 7 ? '(gap)' : ''
  const before = Math.floor((length - label.length) / 2)
  return ' '.repeat(before) + label + ' '.repeat(length - label.length - before)
}

/**
 * The column of a backup. It uses the end of the backup, which lies in a window, because the time of its verification
 * may lie after the window's end.
 */
function markColumn(segments: Segment[], backup: PostgresBackup): number | undefined {
  if (!isRestorable(backup)) return undefined
  const time = Date.parse(backup.finished_at!)
  const index = segments.findLastIndex(({ from, isGap }) => !isGap && from <= time)
  const segment = segments[index]
  if (!segment) return undefined
  const before = segments.slice(0, index).reduce((sum, { text }) => sum + text.length, 0)
  const part = segment.to === segment.from ? 0 : Math.min(1, (time - segment.from) / (segment.to - segment.from))
  return before + Math.round(part * (segment.text.length - 1))
}

/** A backup that failed verification is still listed but cannot be restored. */
function isRestorable({ status, finished_at, failure }: PostgresBackup): boolean {
  return status === 'completed' && finished_at !== null && failure === undefined
}

function withTimes(line: string, oldest: RecoveryWindow, newest: RecoveryWindow, width: number): string {
  const [earliest, latest] = [utcText(oldest.earliest), utcText(newest.latest)]
  const gap = width - earliest.length - latest.length
  if (gap >= 2) return `${earliest}${' '.repeat(gap)}${latest}\n${line}`
  return `${earliest}\n${line}\n${latest.padStart(width)}`
}

function summaryText(windows: RecoveryWindow[], backups: PostgresBackup[], now: number): string {
  const gaps = windows.slice(1).map(({ earliest }, index) => describeGap(windows[index]!.latest, earliest))
  const edge = `the window ended ${formatAge(windows.at(-1)!.latest, now)} ago`
  return [...gaps, `● ${backupsText(backups, now)}; ${edge}`].join('\n')
}

function describeGap(from: string, to: string): string {
  const span = formatSpan((Date.parse(to) - Date.parse(from)) / 1000)
  return `Cannot be restored: ${utcText(from)} to ${utcText(to)} (${span})`
}

function backupsText(backups: PostgresBackup[], now: number): string {
  const completed = backups.filter(isRestorable)
  const newest = completed[0]
  if (!newest) return 'no backup of this cluster yet'
  const verified = newest.verified_at === null ? 'not verified' : `verified ${formatAge(newest.verified_at, now)} ago`
  const facts = `${formatBytes(newest.size_bytes ?? 0)}, ${verified}`
  return `${formatCount(completed.length, 'backup')}, newest ${newest.id} (${facts})`
}

/** Rounds to whole seconds, which is the precision of the platform's clock. */
function formatAge(time: string, now: number): string {
  return formatSpan(Math.round((now - Date.parse(time)) / 1000))
}

function utcText(rfc3339: string): string {
  return `${rfc3339.slice(0, 10)} ${rfc3339.slice(11, 19)} UTC`
}
