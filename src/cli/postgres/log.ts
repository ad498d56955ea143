import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import type { PostgresLog } from '../api-types.ts'
import { request, requestIfPresent } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { printAnswer, type Terminal, visible } from '../output.ts'
import { type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface LogOptions extends OrgOptions {
  lines: number
  follow?: true
}

type LogAnswer = Data<PostgresLog>

const maxLines = 1000 // the most the platform gives at once
const followIntervalMs = 1000

export function addLogCommand(postgres: Command, cli: Cli): void {
  const logs = withClusterArgument(postgres.command('logs'))
    .description('show what the server of a cluster logs, with times in UTC')
    .option('-n, --lines <count>', 'how many of the last lines', parseWholeNumber, 100)
    .option('-f, --follow', 'go on with new lines as they come')
    .action((nameOrId: string, options: LogOptions) => printLog(cli, nameOrId, options))
  addExamples(logs, 'berth postgres logs shop', 'berth postgres logs shop -n 20 -f')
}

async function printLog(cli: Cli, nameOrId: string, options: LogOptions): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const first = await request<LogAnswer>(cli.session(), 'GET', `${path}/logs?lines=${options.lines}`)
  if (options.follow) await followLog(cli, nameOrId, `${path}/logs?lines=${maxLines}`, first.data.lines)
  else printLines(cli.terminal(), first)
}

/** Until the cluster is deleted. */
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
  if (!terminal.json) terminal.note(`Cluster ${visible(nameOrId)} is deleted.`)
}

function printLines(terminal: Terminal, answer: LogAnswer): void {
  if (answer.data.lines.length === 0 && !terminal.json) terminal.note('The log is empty.')
  else printAnswer(terminal, answer, () => formatLines(answer.data.lines))
}

/** JSON without an end has a document on each line, so that readers know where one ends. */
function printNewLines(terminal: Terminal, lines: string[]): void {
  if (lines.length === 0) return
  terminal.print(terminal.json ? JSON.stringify({ data: { lines } }) : formatLines(lines))
}

function formatLines(lines: string[]): string {
  return lines.map(formatLine).join('\n')
}

/** Further lines of a message start with a tab. */
function formatLine(line: string): string {
  return visible(line.replaceAll('\t', '    '))
}

/** Those of `now` that came after the last ones of `seen`; all of them when so many came that the two do not meet. */
export function linesAfter(seen: string[], current: string[]): string[] {
  if (seen.length === 0) return current
  for (let end = current.length; end > 0; end--) {
    const shared = Math.min(seen.length, end)
    const overlaps = seen.slice(-shared).every((line, index) => line === current[end - shared + index])
    if (overlaps) return current.slice(end)
  }
  return current
}
