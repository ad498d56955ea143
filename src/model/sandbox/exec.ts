// Parameters and WebSocket messages of the exec operations.
import { Type } from 'typebox'
import { durationOr } from '../duration.ts'
import { badRequest } from '../errors.ts'
import { readSignal } from '../signal.ts'

export interface ExecRequest {
  argv: [string, ...string[]]
  /** An absolute path inside the sandbox; the home directory when absent. */
  dir?: string
  env: Record<string, string>
  tty: boolean
  /** Without stdin, the command reads EOF immediately. */
  stdin: boolean
  cols: number
  rows: number
  /** How long it may run without a connected client; null means no limit. */
  maxRunAfterDisconnectMs: number | null
}

export const stdinByte = 0
const exitByte = 3
export const stdinEndByte = 4

const defaultSize = { cols: 80, rows: 24 }
const maxCells = 9999
const plainRunAfterDisconnectMs = 10_000

/** The command of a terminal session without a command. */
const defaultShell = 'bash'

/** The maximum number of arguments or variables; their length is limited by the size of the request headers. */
const maxWords = 10_000

export function readExecRequest(search: URLSearchParams): ExecRequest {
  const tty = readFlag(search.get('tty')) ?? false
  const limit = durationOr(search.get('max_run_after_disconnect') ?? undefined, 0)
  const dir = readDirectory(search.get('dir'))
  return {
    argv: readArgv(search),
    ...(dir === undefined ? {} : { dir }),
    env: readEnvironment(search.getAll('env')),
    tty,
    stdin: readFlag(search.get('stdin')) ?? tty,
    cols: readCells(search.get('cols')) ?? defaultSize.cols,
    rows: readCells(search.get('rows')) ?? defaultSize.rows,
    maxRunAfterDisconnectMs: limit > 0 ? limit : tty ? null : plainRunAfterDisconnectMs,
  }
}

/** The program and its arguments, unchecked. The program is empty when there is none. */
export function commandWords(search: URLSearchParams): [string, ...string[]] {
  const [first, ...rest] = [...search.getAll('cmd'), ...search.getAll('cmd[]')]
  return [search.get('path') || first || (readFlag(search.get('tty')) ? defaultShell : ''), ...rest]
}

function readArgv(search: URLSearchParams): [string, ...string[]] {
  const [program, ...rest] = commandWords(search)
  if (program === '') throw badRequest('no command: pass each word as cmd=…&cmd=…')
  if (rest.length > maxWords) throw badRequest(`a command has at most ${maxWords} words`)
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
  if (pairs.length > maxWords) throw badRequest(`at most ${maxWords} variables can be given`)
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
  if (text.includes('\0')) throw badRequest(`${name} contains a NUL byte`)
}

/** Accepts the spellings of Go's strconv.ParseBool, which most clients use. */
export function readFlag(text: string | null): boolean | undefined {
  if (text === null) return undefined
  if (/^(1|t|true)$/i.test(text)) return true
  return /^(0|f|false)$/i.test(text) ? false : undefined
}

function readCells(value: unknown): number | undefined {
  const cells = typeof value === 'string' && /^\d{1,5}$/.test(value) ? Number(value) : value
  return typeof cells === 'number' && Number.isInteger(cells) && cells >= 1 && cells <= maxCells ? cells : undefined
}

export type ClientMessage = { type: 'resize'; cols: number; rows: number } | { type: 'signal'; signal: number }

/** Returns undefined for unknown messages, which are ignored. */
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

/** Longer than the message that starts a command with 128 KiB of arguments. Parsing a megabyte takes too long. */
const maxMessageLength = 512 * 1024

export function readObject(text: string): Record<string, unknown> | undefined {
  if (text.length > maxMessageLength) return undefined
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

/** Clients read either name of the exit code. */
export function exitText(code: number): string {
  return JSON.stringify({ type: 'exit', exit_code: code, code })
}

/** Some clients read the exit code of a terminal session only from the WebSocket close code. */
export function terminalCloseCode(code: number): number {
  return code === 0 ? 1000 : 4000 + (code & 0xff)
}

export const ExecSessionView = Type.Object(
  {
    id: Type.String(),
    command: Type.String({ description: 'The path of the program and its arguments.' }),
    workdir: Type.String(),
    created: Type.String({ format: 'date-time' }),
    tty: Type.Boolean(),
    bytes_per_second: Type.Number({ description: 'Output rate in the last second.' }),
    is_active: Type.Boolean({ description: 'A client is attached, or it produced output in the last seconds.' }),
    last_activity: Type.Optional(Type.String({ format: 'date-time' })),
  },
  { title: 'ExecSession' },
)

export const ExecSessionList = Type.Object(
  { count: Type.Integer(), sessions: Type.Array(ExecSessionView) },
  { title: 'ExecSessionList' },
)
