import { constants } from 'node:os'
import type { Command } from 'commander'
import { addExamples } from '../command.ts'
import { collect } from '../option.ts'
import { parseVariables, type SandboxCli, type Streams, sandboxPath, withSandboxArgument } from './find.ts'
import type { Outcome } from './session.ts'

interface ExecOptions {
  dir?: string
  env?: string[]
  tty?: true
  interactive?: true
}

export function addExecCommand(sandbox: Command, cli: SandboxCli): void {
  const exec = withSandboxArgument(sandbox.command('exec'))
    .description('run a command in a sandbox and exit with its exit code')
    .argument('<command...>', 'the program and its arguments; write -- before them')
    .option('--dir <path>', 'working directory; /home/sprite when omitted')
    .option('--env <NAME=value>', 'an environment variable; may be given several times', collect)
    .option('-t, --tty', 'allocate a terminal')
    .option('-i, --interactive', 'pass standard input from a terminal; piped input is always passed')
    .action((name: string, words: string[], options: ExecOptions) => runCommand(cli, name, words, options))
  exec.addHelpText(
    'after',
    `
Without a terminal, standard output and standard error are kept separate and bytes are not changed. Ctrl-C and other
signals are forwarded to the command. It is ended 10 seconds after the connection is lost; use "berth sandbox console"
for a command that should keep running.`,
  )
  addExamples(
    exec,
    'berth sandbox exec demo -- ls -la /etc',
    "berth sandbox exec demo --dir /tmp --env MODE=test -- sh -c 'echo $MODE; pwd'",
    'berth sandbox exec demo -- tar -xzf - < project.tgz',
    'berth sandbox exec -it demo -- htop',
  )
}

async function runCommand(cli: SandboxCli, name: string, words: string[], options: ExecOptions): Promise<void> {
  const { streams } = cli
  const takesInput = options.interactive === true || options.tty === true || streams.input.isTTY !== true
  const path = commandPath(name, words, streams, { ...options, stdin: takesInput })
  const session = cli.session()
  const { runSession } = await import('./session.ts')
  const outcome = await runSession(session, path, { streams, takesInput, canDetach: false })
  cli.setExitCode(exitCodeOf(outcome))
}

/** The exit code of the command, or 128 plus the signal that made this process detach from it. */
export function exitCodeOf(outcome: Outcome): number {
  if (outcome.is === 'ended') return outcome.code
  return outcome.signal ? 128 + constants.signals[outcome.signal] : 0
}

export interface CommandOptions {
  dir?: string
  env?: string[]
  tty?: boolean
  stdin: boolean
}

/** The API path of the WebSocket that runs the command. */
export function commandPath(name: string, words: string[], streams: Streams, options: CommandOptions): string {
  return `${sandboxPath(name)}/exec?${commandQuery(words, streams, options)}`
}

export function commandQuery(words: string[], { output }: Streams, options: CommandOptions): URLSearchParams {
  const query = new URLSearchParams(words.map((word): [string, string] => ['cmd', word]))
  for (const [key, value] of Object.entries(parseVariables(options.env) ?? {})) query.append('env', `${key}=${value}`)
  if (options.dir !== undefined) query.set('dir', options.dir)
  query.set('stdin', String(options.stdin))
  if (options.tty) {
    query.set('tty', 'true')
    if (output.columns && output.rows) {
      query.set('cols', String(output.columns))
      query.set('rows', String(output.rows))
    }
  }
  return query
}
