import type { Command } from 'commander'
import { encodeSegment } from '../client.ts'
import type { Cli } from '../command.ts'
import { UsageError } from '../errors.ts'
import { parsePairs } from '../option.ts'
import type { ProgressStream } from '../progress.ts'

/** The standard streams of this process, or replacements in tests. */
export interface Streams {
  input: NodeJS.ReadableStream & { isTTY?: boolean; setRawMode?: (on: boolean) => unknown; destroy(): unknown }
  output: NodeJS.WritableStream & { isTTY?: boolean; columns?: number; rows?: number }
  errors: NodeJS.WritableStream & ProgressStream
}

/** Access to the process that sandbox commands need. The session points at the sandbox API. */
export interface SandboxCli extends Cli {
  streams: Streams
  /** Sets the exit code for when the process ends. */
  setExitCode(code: number): void
}

/** The start of relative paths and the default working directory of commands. */
export const sandboxHome = '/home/sprite'

export function withSandboxArgument(command: Command): Command {
  return command.argument('<sandbox>', 'the name of the sandbox')
}

export function sandboxPath(name: string): string {
  return `/v1/sandboxes/${encodeSegment(name)}`
}

export function withServiceArgument(command: Command): Command {
  return withSandboxArgument(command).argument('<service>', 'the name of the service')
}

export function servicePath(name: string, service: string): string {
  return `${sandboxPath(name)}/services/${encodeSegment(service)}`
}

/** Reads `NAME=value` pairs. Returns undefined when there are none, so that nothing is sent. */
export function parseVariables(pairs: string[] | undefined): Record<string, string> | undefined {
  return pairs && parsePairs('--env', pairs)
}

/** Accepts `files demo ls` for `files ls demo`, because both orders are common. */
export function allowSandboxFirst(group: Command): void {
  group
    .usage('<command> <sandbox> [arguments...]')
    .argument('[words...]', 'alternative order: a sandbox, a command and its arguments')
    .allowUnknownOption()
    .action(async (_words, _options, command: Command) => {
      const [name, verb, ...rest] = command.args
      const named = group.commands.find((each) => each.name() === verb || each.aliases().includes(verb ?? ''))
      if (named) await named.parseAsync([name!, ...rest], { from: 'user' })
      else rejectUnknownCommand(group, verb ?? name)
    })
}

function rejectUnknownCommand(group: Command, word: string | undefined): never {
  const names = group.commands.map((command) => command.name()).join(', ')
  throw new UsageError(
    word === undefined ? `name one of the commands ${names}` : `unknown command "${word}"; use one of ${names}`,
  )
}
