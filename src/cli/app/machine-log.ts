import type { Command } from 'commander'
import type { LogLine } from '../api-types.ts'
import { encodeSegment } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { sanitizeOutput } from '../output.ts'
import { machinePath } from './machine-find.ts'
import { type AppOptions, appName, withAppOption } from './option.ts'

interface LogOptions extends AppOptions {
  lines: number
  follow?: true
  machine?: string
}

/** Adds `berth logs` for an app. */
export function addLogsCommand(program: Command, cli: Cli): void {
  const logs = withLineOptions(withAppOption(program.command('logs')))
    .description('show the logs of the machines of an app')
    .option('--machine <id>', 'only this machine')
    .action((options: LogOptions) => printLog(cli, options.machine, options))
  addExamples(logs, 'berth logs -a web', 'berth logs -a web -f')
}

/** Adds `berth machine logs` for one machine. */
export function addMachineLogs(machines: Command, cli: Cli): void {
  const logs = withLineOptions(withAppOption(machines.command('logs')))
    .description('show the log of a machine')
    .argument('<id>', 'the id of the machine')
    .action((id: string, options: LogOptions) => printLog(cli, id, options))
  addExamples(logs, 'berth machine logs 1857156b526dd8 -a web -f')
}

function withLineOptions(command: Command): Command {
  return command
    .option('-n, --lines <count>', 'number of most recent lines to show', parseWholeNumber, 100)
    .option('-f, --follow', 'keep printing new lines')
}

async function printLog(cli: Cli, machine: string | undefined, options: LogOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = appName(options)
  const source = machine === undefined ? `/v1/apps/${encodeSegment(app)}` : machinePath(app, machine)
  const query = new URLSearchParams({ lines: String(options.lines), ...(options.follow && { follow: 'true' }) })
  const { readEvents } = await import('../stream.ts')
  let count = 0
  for await (const line of readEvents<LogLine>(cli.session(), { method: 'GET', path: `${source}/logs?${query}` })) {
    count++
    terminal.print(terminal.json ? JSON.stringify(line) : formatLine(line))
  }
  if (count === 0 && !terminal.json) terminal.note('The log is empty.')
}

function formatLine({ timestamp, instance, region, stream, message, container }: LogLine): string {
  const suffix = stream === 'platform' ? ' (platform)' : ''
  const name = container === undefined ? '' : ` ${container}`
  return `${timestamp} ${instance}[${region}]${name}${suffix} ${sanitizeOutput(message)}`
}
