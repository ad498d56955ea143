import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import { request } from './client.ts'
import { addExamples, type Cli } from './command.ts'
import { parseWholeNumber } from './number.ts'
import { printAnswer, visible } from './output.ts'
import { type Data, findCluster, type InOrg, takesCluster } from './postgres-find.ts'

interface LogOptions extends InOrg {
  lines: number
  follow?: true
}

const mostLines = 1000 // the most the platform gives at once
const followMillis = 1000

export function addLogCommand(postgres: Command, cli: Cli): void {
  const logs = takesCluster(postgres.command('logs'))
    .description('show what the server of a cluster logs')
    .option('-n, --lines <count>', 'how many of the last lines', parseWholeNumber, 100)
    .option('-f, --follow', 'go on with new lines as they come')
    .action((given: string, options: LogOptions) => printLog(cli, given, options))
  addExamples(logs, 'berth postgres logs shop', 'berth postgres logs shop -n 20 -f')
}

async function printLog(cli: Cli, given: string, options: LogOptions): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, given, options)
  const read = (lines: number) => request<Data<{ lines: string[] }>>(session, 'GET', `${path}/logs?lines=${lines}`)
  const first = await read(options.lines)
  if (first.data.lines.length > 0 || !options.follow) printLines(cli, first)
  if (!options.follow) return
  for (let seen = first.data.lines; ; ) {
    await delay(followMillis)
    const { lines } = (await read(mostLines)).data
    const fresh = linesAfter(seen, lines)
    if (fresh.length > 0) printLines(cli, { data: { lines: fresh } })
    seen = lines
  }
}

function printLines(cli: Cli, answer: Data<{ lines: string[] }>): void {
  const { lines } = answer.data
  const terminal = cli.terminal()
  if (lines.length === 0 && !terminal.json) terminal.note('The log is empty.')
  else printAnswer(terminal, answer, () => lines.map(lineText).join('\n'))
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
