import type { Command } from 'commander'
import { encodeSegment } from '../client.ts'
import type { Cli } from '../command.ts'
import { Misuse } from '../failure.ts'
import { parsePairs } from '../option.ts'
import type { ProgressStream } from '../progress.ts'

/** The streams of this process, or what stands for them. */
export interface Streams {
  input: NodeJS.ReadableStream & { isTTY?: boolean; setRawMode?: (on: boolean) => unknown; destroy(): unknown }
  output: NodeJS.WritableStream & { isTTY?: boolean; columns?: number; rows?: number }
  errors: NodeJS.WritableStream & ProgressStream
}

/** What these commands need of the process beyond what all need. Its session is one with the address of sandboxes. */
export interface SandboxCli extends Cli {
  streams: Streams
  /** The process ends with it once nothing is left to do. */
  setExitCode(code: number): void
}

/** Where relative paths begin, as for commands. */
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

/** Variables as `NAME=value`. Undefined when there are none, so that nothing is sent. */
export function parseVariables(pairs: string[] | undefined): Record<string, string> | undefined {
  return pairs && parsePairs('--env', pairs)
}

/** Lets `files demo ls` mean `files ls demo`: people who think of the sandbox first write it first. */
export function allowSandboxFirst(group: Command): void {
  group
    .usage('<command> <sandbox> [arguments...]')
    .argument('[words...]', 'a sandbox, a command and its arguments, when the sandbox is written first')
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
  throw new Misuse(word === undefined ? `name one of the commands ${names}` : `"${word}" is none of ${names}`)
}
