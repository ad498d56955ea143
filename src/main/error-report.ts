import { CommanderError } from 'commander'
import { ApiError, CommandError, InterruptedError, UsageError } from '../cli/errors.ts'
import { sanitize, type Terminal } from '../cli/output.ts'
import { describeError } from '../model/errors.ts'

// An interrupt exits like a shell does: 128 plus the number of the signal.
export const exitCodes = { done: 0, refused: 1, misused: 2, interrupted: 130 }

/** Prints the error and returns its exit code. */
export function reportError(terminal: Terminal, error: Error): number {
  if (error instanceof CommanderError) return reportParserError(terminal, error)
  const isExpected = [ApiError, UsageError, CommandError, InterruptedError].some((kind) => error instanceof kind)
  const message = isExpected ? error.message : describeError(error)
  const details = error instanceof CommandError ? error.details : []
  if (terminal.json) {
    const more = details.length > 0 ? { details } : {}
    terminal.note(JSON.stringify(error instanceof ApiError ? error.body : { error: message, ...more }))
  } else {
    terminal.note(`${error instanceof InterruptedError ? '' : 'error: '}${sanitize(message)}`)
    for (const line of details) terminal.note(sanitize(line))
  }
  if (error instanceof InterruptedError) return exitCodes.interrupted
  return error instanceof UsageError ? exitCodes.misused : exitCodes.refused
}

/** Commander has printed its message already, except with --json. Requested help is not an error. */
function reportParserError(terminal: Terminal, error: CommanderError): number {
  if (error.exitCode === 0) return exitCodes.done
  const isIncomplete = error.code === 'commander.help'
  const message = isIncomplete ? 'a command is missing; --help lists them' : error.message.replace(/^error: /, '')
  if (terminal.json) terminal.note(JSON.stringify({ error: message.replaceAll('\n', ' ') }))
  return exitCodes.misused
}
