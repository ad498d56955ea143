import type { Command } from 'commander'
import type { Session } from './client.ts'
import type { Terminal } from './output.ts'
import type { ProgressStream } from './progress.ts'

/** Access to the process a command runs in. These are functions because options of the command affect the result. */
export interface Cli {
  session(): Session
  terminal(): Terminal
}

export interface ProgressCli extends Cli {
  progress: ProgressStream
}

export const defaultOrg = 'personal'

export function addExamples(command: Command, ...lines: string[]): Command {
  return command.addHelpText('after', `\nExamples:\n${lines.map((line) => `  $ ${line}`).join('\n')}`)
}
