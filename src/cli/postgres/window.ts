import type { Command } from 'commander'
import type { PostgresBackup, PostgresCluster, RecoveryWindow } from '../api-types.ts'
import { bytesText } from '../bytes.ts'
import { request, type Session } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { countText, printAnswer, visible } from '../output.ts'
import { listBackups, spanText } from './backup.ts'
import { type Data, findCluster, type InOrg, takesCluster } from './find.ts'

export function addWindowCommand(postgres: Command, cli: ProgressCli): void {
  const window = takesCluster(postgres.command('window'))
    .description('draw the time to which a cluster can be restored, with its backups')
    .action((given: string, options: InOrg) => printWindow(cli, given, options))
  addExamples(window, 'berth postgres window shop', 'berth postgres window shop --json')
}

async function printWindow(cli: ProgressCli, given: string, options: InOrg): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, given, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  const { data: backups } = await listBackups(session, path)
  const now = await readPlatformClock(session)
  const { recovery_window, recovery_windows } = cluster
  // A terminal that does not know its width says 0.
  const width = cli.progress.columns || 80
  printAnswer(cli.terminal(), { data: { recovery_window, recovery_windows, backups } }, () => {
    if (recovery_windows.length === 0) return visible(noWindowText(cluster, backups))
    return [drawWindow(recovery_windows, backups, width), summaryText(recovery_windows, backups, now)].join('\n')
  })
}

/** In milliseconds, to the second. The clock of this machine may be another. */
export async function readPlatformClock({ url }: Session): Promise<number> {
  const { headers } = await fetch(`${url}/healthz`, { method: 'GET', signal: AbortSignal.timeout(30_000) })
  const time = Date.parse(headers.get('date') ?? '')
  return Number.isNaN(time) ? Date.now() : time
}

export function noWindowText(
  { name, status }: Pick<PostgresCluster, 'name' | 'status'>,
  backups: PostgresBackup[],
): string {
  return `Cluster ${name} cannot be restored to a point in time: ${whyNoWindow(status, backups)}.`
}

function whyNoWindow(status: string, backups: PostgresBackup[]): string {
  if (status !== 'ready') return `it is ${status}`
  const newest = backups[0]
  if (!newest) return 'its first backup has not begun yet'
  if (newest.status === 'failed') return `its backup ${newest.id} failed: ${newest.failure ?? 'for an unknown reason'}`
  if (newest.failure !== undefined) return `its backup ${newest.id} is damaged: ${newest.failure}`
  if (newest.status === 'completed') return `its archive has not gone on past backup ${newest.id} yet`
  return `its backup ${newest.id} is ${newest.status}`
}

/** The windows as a line with the holes as gaps, a mark for each completed backup, and the time of both ends. */
export function drawWindow(windows: RecoveryWindow[], backups: PostgresBackup[], width: number): string {
  // A window and the hole before it take a column each; what does not fit is left out on the side of the past.
  const shown = windows.slice(-Math.max(1, Math.floor((width + 1) / 2)))
  const stretches = layOut(shown, width)
  const marks = new Set(backups.map((backup) => markAt(stretches, backup)))
  const line = [...stretches.map(({ text }) => text).join('')]
  const marked = line.map((character, column) => (marks.has(column) ? '●' : character)).join('')
  return withTimes(marked, shown[0]!, shown.at(-1)!, width)
}

interface Stretch {
  text: string
  from: number
  to: number
  isHole: boolean
}

/** Windows and the holes between them, each as long as its time but never without a column. */
function layOut(windows: RecoveryWindow[], width: number): Stretch[] {
  const stretches = windows.flatMap((window, index) => {
    const [from, to] = [Date.parse(window.earliest), Date.parse(window.latest)]
    const before = windows[index - 1]
    const hole = before ? [{ from: Date.parse(before.latest), to: from, isHole: true }] : []
    return [...hole, { from, to, isHole: false }]
  })
  const lengths = share(
    stretches.map(({ from, to }) => to - from),
    Math.max(width, stretches.length),
  )
  return stretches.map((stretch, index) => {
    const length = lengths[index]!
    return { ...stretch, text: stretch.isHole ? holeText(length) : windowText(length) }
  })
}

/** Gives each of the sizes one of the columns and the rest in proportion, so that all are used. */
function share(sizes: number[], columns: number): number[] {
  const total = sizes.reduce((sum, size) => sum + size, 0)
  const spare = columns - sizes.length
  let [sum, given] = [0, 0]
  return sizes.map((size, index) => {
    sum += size
    const upTo = Math.round((total === 0 ? (index + 1) / sizes.length : sum / total) * spare)
    const length = 1 + upTo - given
    given = upTo
    return length
  })
}

function windowText(length: number): string {
  return length === 1 ? '│' : `├${'─'.repeat(length - 2)}┤`
}

function holeText(length: number): string {
  const label = length >= 8 ? '(hole)' : ''
  const before = Math.floor((length - label.length) / 2)
  return ' '.repeat(before) + label + ' '.repeat(length - label.length - before)
}

/**
 * A backup restores the state at its end, which lies in a window. When it was found right, a little later, may be
 * past the window's edge.
 */
function markAt(stretches: Stretch[], backup: PostgresBackup): number | undefined {
  if (!isSound(backup)) return undefined
  const time = Date.parse(backup.finished_at!)
  const index = stretches.findLastIndex(({ from, isHole }) => !isHole && from <= time)
  const stretch = stretches[index]
  if (!stretch) return undefined
  const before = stretches.slice(0, index).reduce((sum, { text }) => sum + text.length, 0)
  const part = stretch.to === stretch.from ? 0 : Math.min(1, (time - stretch.from) / (stretch.to - stretch.from))
  return before + Math.round(part * (stretch.text.length - 1))
}

/** One that was found damaged is still there, but of no use. */
function isSound({ status, finished_at, failure }: PostgresBackup): boolean {
  return status === 'completed' && finished_at !== null && failure === undefined
}

function withTimes(line: string, oldest: RecoveryWindow, newest: RecoveryWindow, width: number): string {
  const [earliest, latest] = [utcText(oldest.earliest), utcText(newest.latest)]
  const gap = width - earliest.length - latest.length
  if (gap >= 2) return `${earliest}${' '.repeat(gap)}${latest}\n${line}`
  return `${earliest}\n${line}\n${latest.padStart(width)}`
}

function summaryText(windows: RecoveryWindow[], backups: PostgresBackup[], now: number): string {
  const holes = windows.slice(1).map(({ earliest }, index) => holeLine(windows[index]!.latest, earliest))
  const edge = `now is ${agoText(windows.at(-1)!.latest, now)} after the newer edge`
  return [...holes, `● ${backupsText(backups, now)}; ${edge}`].join('\n')
}

function holeLine(from: string, to: string): string {
  const span = spanText((Date.parse(to) - Date.parse(from)) / 1000)
  return `Not to be restored: ${utcText(from)} to ${utcText(to)} (${span})`
}

function backupsText(backups: PostgresBackup[], now: number): string {
  const completed = backups.filter(isSound)
  const newest = completed[0]
  if (!newest) return 'no backup of its own yet'
  const verified = newest.verified_at === null ? 'not verified' : `verified ${agoText(newest.verified_at, now)} ago`
  const facts = `${bytesText(newest.size_bytes ?? 0)}, ${verified}`
  return `${countText(completed.length, 'backup')}, newest ${newest.id} (${facts})`
}

/** Whole seconds at the least: the platform's clock is read no finer. */
function agoText(time: string, now: number): string {
  return spanText(Math.round((now - Date.parse(time)) / 1000))
}

function utcText(rfc3339: string): string {
  return `${rfc3339.slice(0, 10)} ${rfc3339.slice(11, 19)} UTC`
}
