import { CommandError, UsageError } from './errors.ts'

export interface Terminal {
  /** Print the platform's answer as JSON instead of formatted text. */
  json: boolean
  colors: boolean
  /** Prints one or more lines to standard output. */
  print(text: string): void
  /** Prints to standard error, for messages that are not part of the result. */
  note(text: string): void
  /** Absent when standard input is not a terminal. */
  ask?: (question: string) => Promise<string>
}

export type Cell = string | number | boolean | null | undefined

/** Prints the answer as JSON or, by default, the text that `renderText` returns. */
export function printResult(terminal: Terminal, answer: unknown, renderText: () => string): void {
  terminal.print(terminal.json ? JSON.stringify(answer, null, 2) : renderText())
}

/** Formats rows as aligned columns, without trailing spaces. */
export function table(headers: string[], rows: Cell[][], colors: boolean): string {
  const lines = [headers, ...rows.map((row) => row.map(cellText))]
  const widths = headers.map((_, column) => Math.max(...lines.map((line) => width(line[column] ?? ''))))
  const [head, ...body] = lines.map((line) =>
    line
      .map((text, column) => pad(text, widths[column]!))
      .join('  ')
      .trimEnd(),
  )
  return [colors ? dim(head!) : head!, ...body].join('\n')
}

/** Formats one `key  value` line per pair, with the values aligned. */
export function block(pairs: [string, Cell][], colors: boolean): string {
  const widest = Math.max(...pairs.map(([key]) => width(key)))
  return pairs
    .map(([key, value]) => {
      const label = pad(key, widest)
      return `${colors ? dim(label) : label}  ${cellText(value)}`
    })
    .join('\n')
}

/** Formats a time to the second. The JSON output has the full precision. */
export function formatTime(rfc3339: string | null): string {
  return rfc3339 ? `${rfc3339.slice(0, 19)}Z` : ''
}

export function formatCount(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

/** Replaces control characters, so that text from others cannot move the cursor or change colours. */
export function sanitize(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, '\u{fffd}')
}

const esc = '\u001b'
const colour = new RegExp(`(${esc}\\[[\\d;]*m)`)
const controls = /(?![\t\n])\p{Cc}/gu

/** Makes the output of a program safe to show on a terminal: line breaks and colours stay, other controls go. */
export function sanitizeOutput(text: string): string {
  const parts = text.replaceAll('\r\n', '\n').split(colour)
  const shown = parts.map((part, index) => (index % 2 === 1 ? part : part.replace(controls, '\u{fffd}'))).join('')
  return parts.length > 1 ? shown.replace(/\n?$/, `${esc}[0m$&`) : shown
}

/** Asks the question and throws unless the answer is yes. */
export async function confirm(terminal: Terminal, question: string): Promise<void> {
  if (!terminal.ask)
    throw new UsageError('this command asks for confirmation, but standard input is not a terminal; use --yes')
  const answer = await terminal.ask(`${sanitize(question)} [y/N] `)
  if (!/^y(es)?$/i.test(answer.trim())) throw new CommandError('nothing was changed')
}

function cellText(value: Cell): string {
  if (value === null || value === undefined || value === '') return '-'
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  return sanitize(String(value))
}

function width(text: string): number {
  return [...text].length
}

function pad(text: string, columns: number): string {
  return text + ' '.repeat(columns - width(text))
}

function dim(text: string): string {
  return `\u001b[2m${text}\u001b[22m`
}
