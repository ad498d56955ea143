// Where a process of the platform writes its log: JSON lines to standard output or, with bounded size, to a file of the
// home. A terminal shows only warnings and errors, as plain lines.
import { fstatSync, renameSync, statSync } from 'node:fs'
import pino, { type Logger } from 'pino'
import { sanitize } from '../cli/output.ts'
import type { Home } from '../drivers/host/home.ts'
import type { Config } from './config.ts'

/** `terminal`: a file, and what a person should see on standard error. */
export type LogTarget = 'output' | 'file' | 'terminal'

/** The declarations of the package lack the file descriptor. */
type LogFile = ReturnType<typeof pino.destination> & { fd: number }

export function controlPlaneLog(home: Pick<Home, 'path'>): string {
  return `${home.path}/log/control-plane.log`
}

export function openLog({ logLevel }: Pick<Config, 'logLevel'>, home: Pick<Home, 'path'>, target: LogTarget): Logger {
  const options = { level: logLevel, base: { pid: process.pid }, timestamp }
  if (target === 'output') return pino(options, pino.destination({ dest: 1, ...buffering }))
  const file = openFile(controlPlaneLog(home))
  if (target === 'file') return pino(options, file)
  const screen = { write: showLine((line) => process.stderr.write(`${line}\n`)) }
  return pino(
    options,
    pino.multistream([
      { level: 'trace', stream: file },
      { level: 'warn', stream: screen },
    ]),
  )
}

const buffering = { sync: false, minLength: 4096, periodicFlush: 100 }

const rotationCheckMs = 10_000
const maxLogBytes = 64 * 1024 ** 2

// Memory for lines that cannot be written. Later ones are dropped.
const maxBufferedBytes = 4 * 1024 ** 2

/** A full disk does not end the process: what could not be written is written later. */
function openFile(path: string): LogFile {
  const file = pino.destination({ dest: path, ...buffering, maxLength: maxBufferedBytes, mode: 0o600 }) as LogFile
  file.on('error', () => undefined)
  setInterval(() => rotate(file, path), rotationCheckMs).unref()
  return file
}

let cachedAt = 0
let cachedTimestamp = ''

/** Cached per millisecond: under load many lines share one, and formatting it takes half the time of a line. */
function timestamp(): string {
  const now = Date.now()
  if (now !== cachedAt) cachedTimestamp = `,"time":"${new Date(now).toISOString()}"`
  cachedAt = now
  return cachedTimestamp
}

/** Keeps one older file. Also opens the file again if another process or the operator moved it away. */
export function rotate(log: Pick<LogFile, 'reopen' | 'fd'>, path: string, maxBytes = maxLogBytes): void {
  try {
    const open = fstatSync(log.fd)
    const isCurrent = statSync(path, { throwIfNoEntry: false })?.ino === open.ino
    if (isCurrent && open.size <= maxBytes) return
    if (isCurrent) renameSync(path, `${path}.1`)
    log.reopen()
  } catch {
    // The file is not open yet, or the disk is read-only; the next check comes soon.
  }
}

/** A step that fails is tried again and again, and one line about it is enough for a while. */
const repeatAfterMs = 60_000

/** Returns a function that shows the plain form of a JSON line, unless it was shown shortly before. */
export function showLine(show: (line: string) => void, now: () => number = Date.now): (json: string) => void {
  const shownAt = new Map<string, number>()
  return (json) => {
    const { time, text } = plainLine(json)
    for (const [line, at] of shownAt) if (now() - at >= repeatAfterMs) shownAt.delete(line)
    if (shownAt.has(text)) return
    shownAt.set(text, now())
    show(`${time}${text}`)
  }
}

const levels = new Map(Object.entries(pino.levels.labels).map(([value, label]) => [Number(value), label]))
const levelWords: Record<string, string> = { warn: 'warning' }

/** Lines that are not from the logger, such as those of a crash, stay as they are. */
export function plainLine(json: string): { time: string; text: string } {
  const entry = parseEntry(json)
  if (entry === undefined) return { time: '', text: sanitize(json.trimEnd()) }
  const { level, time, pid, msg, err, ...rest } = entry
  const label = levels.get(level) ?? 'info'
  const fields = Object.entries(rest).filter(([, value]) => typeof value !== 'object')
  const details = fields.length === 0 ? '' : ` (${fields.map(([name, value]) => `${name} ${value}`).join(', ')})`
  const cause = err === undefined ? '' : `: ${err.message}`
  return {
    time: `${time?.slice(11, 19) ?? ''}Z `,
    text: sanitize(`${levelWords[label] ?? label}: ${msg}${details}${cause}`),
  }
}

interface Entry {
  level: number
  time?: string
  pid?: number
  msg?: string
  err?: { message: string }
  [field: string]: unknown
}

function parseEntry(json: string): Entry | undefined {
  try {
    const entry = JSON.parse(json)
    return typeof entry?.level === 'number' ? entry : undefined
  } catch {
    return undefined
  }
}
