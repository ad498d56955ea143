import type { Command } from 'commander'
import type { ExecInMachineResponse } from '../api-types.ts'
import { addExamples } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { machinePath } from './machine-find.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'

interface ExecOptions extends AppOptions {
  timeout: number
  stdin?: true
  container?: string
}

export function addMachineExec(machines: Command, cli: MachineCli): void {
  const exec = withAppOption(machines.command('exec'))
    .description('run a command in a machine and exit with its exit code')
    .argument('<id>', 'the id of the machine')
    .argument('<command...>', 'the program and its arguments; write -- before them')
    .option('--timeout <seconds>', 'kill the command after this time; at most 300', parseWholeNumber, 30)
    .option('--container <name>', 'the container to run it in; the one called app, or the first, when omitted')
    .option('--stdin', 'pass standard input to the command; it is read to the end first')
    .action((id: string, words: string[], options: ExecOptions) => runCommand(cli, id, words, options))
  exec.addHelpText('after', '\nThe output is printed when the command has ended, at most 1 MiB of each stream.')
  addExamples(
    exec,
    'berth machine exec 1857156b526dd8 -a web -- ls /',
    "berth machine exec 1857156b526dd8 -a web --stdin -- sh -c 'cat > /data/list' < list",
  )
}

async function runCommand(cli: MachineCli, id: string, words: string[], options: ExecOptions): Promise<void> {
  const terminal = cli.terminal()
  const { openStream } = await import('../stream.ts')
  const body = {
    command: words,
    timeout: options.timeout,
    ...(options.container && { container: options.container }),
    ...(options.stdin && { stdin: await cli.readInput() }),
  }
  const path = `${machinePath(appName(options), id)}/exec`
  const answer = await openStream(cli.session(), { method: 'POST', path, body })
  const outcome = JSON.parse(String(Buffer.concat(await answer.toArray()))) as ExecInMachineResponse
  if (terminal.json) terminal.print(JSON.stringify(outcome, null, 2))
  else {
    if (outcome.stdout) terminal.print(outcome.stdout.replace(/\n$/, ''))
    if (outcome.stderr) terminal.note(outcome.stderr.replace(/\n$/, ''))
  }
  cli.setExitCode(outcome.exit_signal > 0 ? 128 + outcome.exit_signal : outcome.exit_code)
}
