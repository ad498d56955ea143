import type { Command } from 'commander'
import { addExamples } from '../command.ts'
import { UsageError } from '../errors.ts'
import { collect } from '../option.ts'
import { commandQuery, exitCodeOf } from '../sandbox/exec.ts'
import type { Streams } from '../sandbox/find.ts'
import { machinePath } from './machine-find.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'

/** A login shell: bash where the image has it. */
const shell = ['sh', '-c', 'command -v bash >/dev/null && exec bash -l; exec sh -l']

export interface ConsoleCli extends MachineCli {
  streams: Streams
}

interface ConsoleOptions extends AppOptions {
  dir?: string
  env?: string[]
}

export function addMachineConsole(machines: Command, cli: ConsoleCli): void {
  const console = withAppOption(machines.command('console'))
    .description('open a terminal in a machine')
    .argument('<id>', 'the id of the machine')
    .argument('[command...]', 'the program and its arguments; defaults to a login shell; write -- before them')
    .option('--dir <path>', 'working directory; that of the image when omitted')
    .option('--env <NAME=value>', 'an environment variable; may be given several times', collect)
    .action((id: string, words: string[], options: ConsoleOptions) => openConsole(cli, id, words, options))
  console.addHelpText(
    'after',
    '\nThe command runs as the user of the image and exits with its exit code. It ends ten seconds after the connection is lost.',
  )
  addExamples(
    console,
    'berth machine console 1857156b526dd8 -a web',
    'berth machine console 1857156b526dd8 -a web -- redis-cli',
  )
}

async function openConsole(cli: ConsoleCli, id: string, words: string[], options: ConsoleOptions): Promise<void> {
  const { streams } = cli
  if (!streams.input.isTTY || !streams.output.isTTY) {
    throw new UsageError('the console needs a terminal; use "berth machine exec" without one')
  }
  const path = `${machinePath(appName(options), id)}/exec`
  const session = cli.session()
  const { runSession } = await import('../sandbox/session.ts')
  const query = commandQuery(words.length > 0 ? words : shell, streams, { ...options, tty: true, stdin: true })
  const outcome = await runSession(session, `${path}?${query}`, { streams, takesInput: true, canDetach: false })
  cli.setExitCode(exitCodeOf(outcome))
}
