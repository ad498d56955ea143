import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import type { PostgresLog } from '../api-types.ts'
import { request, requestIfPresent } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { printResult, sanitize, type Terminal } from '../output.ts'
import { type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface LogOptions extends OrgOptions {
  lines: number
  follow?: true
}

type LogAnswer = Data<PostgresLog>

const maxLines = 1000 // the limit of the platform
const followIntervalMs = 1000

export function addLogCommand(postgres: Command, cli: Cli): void {
  const logs = withClusterArgument(postgres.command('logs'))
    .description('show the server log of a cluster, with times in UTC')
    .option('-n, --lines <count>', 'number of most recent lines to show', parseWholeNumber, 100)
    .option('-f, --follow', 'keep printing new lines')
    .action((nameOrId: string, options: LogOptions) => printLog(cli, nameOrId, options))
  addExamples(logs, 'berth postgres logs shop', 'berth postgres logs shop -n 20 -f')
}

async function printLog(cli: Cli, nameOrId: string, options: LogOptions): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const first = await request<LogAnswer>(cli.session(), 'GET', `${path}/logs?lines=${options.lines}`)
  if (options.follow) await followLog(cli, nameOrId, `${path}/logs?lines=${maxLines}`, first.data.lines)
  else printLines(cli.terminal(), first)
}

/** Prints new lines until the cluster is deleted. */
async function followLog(cli: Cli, nameOrId: string, path: string, first: string[]): Promise<void> {
  const terminal = cli.terminal()
  printNewLines(terminal, first)
  for (let seen = first; ; ) {
    await delay(followIntervalMs)
    const answer = await requestIfPresent<LogAnswer>(cli.session(), path)
    if (!answer) break
    const { lines } = answer.data
    printNewLines(terminal, linesAfter(seen, lines))
    seen = lines
  }
  if (!terminal.json) terminal.note(`Cluster ${sanitize(nameOrId)} is deleted.`)
}

function printLines(terminal: Terminal, answer: LogAnswer): void {
  if (answer.data.lines.length === 0 && !terminal.json) terminal.note('The log is empty.')
  else printResult(terminal, answer, () => formatLines(answer.data.lines))
}

/** An endless JSON output has one document per line, so that readers can parse it as it arrives. */
function printNewLines(terminal: Terminal, lines: string[]): void {
  if (lines.length === 0) return
  terminal.print(terminal.json ? JSON.stringify({ data: { lines } }) : formatLines(lines))
}

function formatLines(lines: string[]): string {
  return lines.map(formatLine).join('\n')
}

/** PostgreSQL starts continuation lines of a message with a tab. */
function formatLine(line: string): string {
  return sanitize(line.replaceAll('\t', '    '))
}

/** Returns the lines of `current` after those already seen, or all of them when the two do not overlap. */
export function linesAfter(seen: string[], current: string[]): string[] {
  if (seen.length === 0) return current
  for (let end = current.length; end > 0; end--) {
    const shared = Math.min(seen.length, end)
    const overlaps = seen.slice(-shared).every((line, index) => line === current[end - shared + index])
    if (overlaps) return current.slice(end)
  }
  return current
}
