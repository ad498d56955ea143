import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import type { PostgresLog } from '../api-types.ts'
import { request, requestIfPresent } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { printAnswer, type Terminal, visible } from '../output.ts'
import { type Data, findCluster, type InOrg, takesCluster } from './find.ts'

interface LogOptions extends InOrg {
  lines: number
  follow?: true
}

type LogAnswer = Data<PostgresLog>

const mostLines = 1000 // the most the platform gives at once
const followMillis = 1000

export function addLogCommand(postgres: Command, cli: Cli): void {
  const logs = takesCluster(postgres.command('logs'))
    .description('show what the server of a cluster logs, with times in UTC')
    .option('-n, --lines <count>', 'how many of the last lines', parseWholeNumber, 100)
    .option('-f, --follow', 'go on with new lines as they come')
    .action((given: string, options: LogOptions) => printLog(cli, given, options))
  addExamples(logs, 'berth postgres logs shop', 'berth postgres logs shop -n 20 -f')
}

async function printLog(cli: Cli, given: string, options: LogOptions): Promise<void> {
  const path = await findCluster(cli, given, options)
  const first = await request<LogAnswer>(cli.session(), 'GET', `${path}/logs?lines=${options.lines}`)
  if (options.follow) await followLog(cli, given, `${path}/logs?lines=${mostLines}`, first.data.lines)
  else printLines(cli.terminal(), first)
}

/** Until the cluster is deleted. */
async function followLog(cli: Cli, given: string, path: string, first: string[]): Promise<void> {
  const terminal = cli.terminal()
  printNewLines(terminal, first)
  for (let seen = first; ; ) {
    await delay(followMillis)
    const answer = await requestIfPresent<LogAnswer>(cli.session(), path)
    if (!answer) break
    const { lines } = answer.data
    printNewLines(terminal, linesAfter(seen, lines))
    seen = lines
  }
  if (!terminal.json) terminal.note(`Cluster ${visible(given)} is deleted.`)
}

function printLines(terminal: Terminal, answer: LogAnswer): void {
  if (answer.data.lines.length === 0 && !terminal.json) terminal.note('The log is empty.')
  else printAnswer(terminal, answer, () => linesText(answer.data.lines))
}

/** JSON without an end has a document on each line, so that readers know where one ends. */
function printNewLines(terminal: Terminal, lines: string[]): void {
  if (lines.length === 0) return
  terminal.print(terminal.json ? JSON.stringify({ data: { lines } }) : linesText(lines))
}

function linesText(lines: string[]): string {
  return lines.map(lineText).join('\n')
}

/** Further lines of a message start with a tab. */
function lineText(line: string): string {
  return visible(line.replaceAll('\t', '    '))
}

/** Those of `now` that came after the last ones of `seen`; all of them when so many came that the two do not meet. */
export function linesAfter(seen: string[], now: string[]): string[] {
  if (seen.length === 0) return now
  for (let end = now.length; end > 0; end--) {
    const shared = Math.min(seen.length, end)
    const meets = seen.slice(-shared).every((line, index) => line === now[end - shared + index])
    if (meets) return now.slice(end)
  }
  return now
}
