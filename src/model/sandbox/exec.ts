// The words and frames of exec: what a caller may ask for, and what goes over a connection.
import { Type } from 'typebox'
import { durationOr } from '../duration.ts'
import { badRequest } from '../errors.ts'
import { readSignal } from '../signal.ts'

export interface ExecRequest {
  argv: [string, ...string[]]
  /** Absolute, as seen inside; absent means its home. */
  dir?: string
  env: Record<string, string>
  tty: boolean
  /** Without it the command reads the end of its input at once. */
  stdin: boolean
  cols: number
  rows: number
  /** How long it may go on with nobody attached; null means for ever. */
  maxRunAfterDisconnectMs: number | null
}

export const stdinByte = 0
export const exitByte = 3
export const stdinEndByte = 4

const presetSize = { cols: 80, rows: 24 }
const mostCells = 9999
const plainRunAfterDisconnectMs = 10_000

/** Terminals need no command: people want a shell. */
const presetShell = 'bash'

/** How many words a command or an environment may have; their length is bounded by that of a request's head. */
const mostWords = 10_000

export function readExecRequest(search: URLSearchParams): ExecRequest {
  const tty = readFlag(search.get('tty')) ?? false
  const limit = durationOr(search.get('max_run_after_disconnect') ?? undefined, 0)
  const dir = readDirectory(search.get('dir'))
  return {
    argv: readArgv(search, tty),
    ...(dir === undefined ? {} : { dir }),
    env: readEnvironment(search.getAll('env')),
    tty,
    stdin: readFlag(search.get('stdin')) ?? tty,
    cols: readCells(search.get('cols')) ?? presetSize.cols,
    rows: readCells(search.get('rows')) ?? presetSize.rows,
    maxRunAfterDisconnectMs: limit > 0 ? limit : tty ? null : plainRunAfterDisconnectMs,
  }
}

function readArgv(search: URLSearchParams, tty: boolean): [string, ...string[]] {
  const [first, ...rest] = [...search.getAll('cmd'), ...search.getAll('cmd[]')]
  const program = search.get('path') || first || (tty ? presetShell : '')
  if (program === '') throw badRequest('no command: give it word by word as cmd=…&cmd=…')
  if (rest.length > mostWords) throw badRequest(`a command has at most ${mostWords} words`)
  for (const word of [program, ...rest]) refuseZero('cmd', word)
  return [program, ...rest]
}

function readDirectory(text: string | null): string | undefined {
  if (!text) return undefined
  refuseZero('dir', text)
  if (!text.startsWith('/')) throw badRequest('dir must be an absolute path')
  return text
}

function readEnvironment(pairs: string[]): Record<string, string> {
  if (pairs.length > mostWords) throw badRequest(`at most ${mostWords} variables can be given`)
  return Object.fromEntries(
    pairs.map((pair) => {
      refuseZero('env', pair)
      const end = pair.indexOf('=')
      if (end < 1) throw badRequest(`env must be of the form NAME=value, not ${JSON.stringify(pair)}`)
      return [pair.slice(0, end), pair.slice(end + 1)]
    }),
  )
}

function refuseZero(name: string, text: string): void {
  if (text.includes('\0')) throw badRequest(`${name} holds a zero byte`)
}

/** As Go reads them, which most clients are written in. */
export function readFlag(text: string | null): boolean | undefined {
  if (text === null) return undefined
  if (/^(1|t|true)$/i.test(text)) return true
  return /^(0|f|false)$/i.test(text) ? false : undefined
}

function readCells(value: unknown): number | undefined {
  const cells = typeof value === 'string' && /^\d{1,5}$/.test(value) ? Number(value) : value
  return typeof cells === 'number' && Number.isInteger(cells) && cells >= 1 && cells <= mostCells ? cells : undefined
}

export type ClientMessage = { type: 'resize'; cols: number; rows: number } | { type: 'signal'; signal: number }

/** Undefined for anything else: clients may say more than we know. */
export function readClientMessage(text: string): ClientMessage | undefined {
  const message = readObject(text)
  if (message?.type === 'resize') {
    const cols = readCells(message.cols)
    const rows = readCells(message.rows)
    return cols && rows ? { type: 'resize', cols, rows } : undefined
  }
  if (message?.type !== 'signal' || !['string', 'number'].includes(typeof message.signal)) return undefined
  try {
    return { type: 'signal', signal: readSignal(message.signal as string | number) }
  } catch {
    return undefined
  }
}

export function readObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}

export function frame(stream: number, data: Buffer): Buffer {
  const bytes = Buffer.allocUnsafe(data.length + 1)
  bytes[0] = stream
  data.copy(bytes, 1)
  return bytes
}

export function exitFrame(code: number): Buffer {
  return Buffer.from([exitByte, code & 0xff])
}

/** Both names of the code are read by clients. */
export function exitText(code: number): string {
  return JSON.stringify({ type: 'exit', exit_code: code, code })
}

/** Some clients learn how a terminal's command ended from this alone. */
export function terminalCloseCode(code: number): number {
  return code === 0 ? 1000 : 4000 + (code & 0xff)
}

export const ExecSessionView = Type.Object(
  {
    id: Type.String(),
    command: Type.String({ description: 'The path of its program, and its words.' }),
    workdir: Type.String(),
    created: Type.String({ format: 'date-time' }),
    tty: Type.Boolean(),
    bytes_per_second: Type.Number({ description: 'Of output, in the last second.' }),
    is_active: Type.Boolean({ description: 'Somebody is attached, or it wrote something in the last seconds.' }),
    last_activity: Type.Optional(Type.String({ format: 'date-time' })),
  },
  { title: 'ExecSession' },
)

export const ExecSessionList = Type.Object(
  { count: Type.Integer(), sessions: Type.Array(ExecSessionView) },
  { title: 'ExecSessionList' },
)
