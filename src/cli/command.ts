import type { Command } from 'commander'
import type { Session } from './client.ts'
import type { Terminal } from './output.ts'

/** What a command needs from the process it runs in. Both are asked for when it runs: options decide about them. */
export interface Cli {
  session(): Session
  terminal(): Terminal
}

export const defaultOrg = 'personal'

export function addExamples(command: Command, ...lines: string[]): Command {
  return command.addHelpText('after', `\nExamples:\n${lines.map((line) => `  $ ${line}`).join('\n')}`)
}
