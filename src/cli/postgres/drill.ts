import type { Command } from 'commander'
import type { PostgresDrill } from '../api-types.ts'
import { request, type Session } from '../client.ts'
import { addExamples, type Cli, type ProgressCli } from '../command.ts'
import { CommandError } from '../errors.ts'
import { block, type Cell, formatTime, printResult, sanitize, table } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { formatSpan } from './backup.ts'
import { clusterArguments, type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface DrillOptions extends OrgOptions {
  query?: string
  wait: boolean
}

export function addDrillCommands(postgres: Command, cli: ProgressCli): void {
  const drills = withClusterArgument(postgres.command('drills'))
    .description('list the restore drills of a cluster, newest first')
    .action((nameOrId: string, options: OrgOptions) => printDrills(cli, nameOrId, options))
  addExamples(drills, 'berth postgres drills shop', 'berth postgres drills shop --json')

  const drill = withClusterArgument(postgres.command('drill'))
    .description('test that a cluster can be restored, in a temporary cluster')
    .option('--query <sql>', 'SQL to run on the restored data, in this and later drills; empty for none')
    .option('--no-wait', 'return without waiting for the drill')
    .action((nameOrId: string, options: DrillOptions) => runDrill(cli, nameOrId, options))
  addExamples(drill, 'berth postgres drill shop', "berth postgres drill shop --query 'select count(*) from orders'")
}

/** Lists the drills of a cluster, newest first. */
function listDrills(session: Session, clusterPath: string): Promise<Data<PostgresDrill[]>> {
  return request(session, 'GET', `${clusterPath}/drills`)
}

async function printDrills(cli: Cli, nameOrId: string, options: OrgOptions): Promise<void> {
  const terminal = cli.terminal()
  const answer = await listDrills(cli.session(), await findCluster(cli, nameOrId, options))
  if (answer.data.length === 0 && !terminal.json) {
    return terminal.note(`Cluster ${sanitize(nameOrId)} has no drills yet; "berth postgres drill" runs one.`)
  }
  const rows = answer.data.map((drill): Cell[] => [
    formatTime(drill.created_at),
    drill.status,
    formatTime(drill.target),
    drill.seconds === null ? null : formatSpan(drill.seconds),
    drill.result ?? drill.progress,
  ])
  const headers = ['REQUESTED', 'STATUS', 'RESTORED TO', 'TOOK', 'RESULT']
  printResult(terminal, answer, () => table(headers, rows, terminal.colors))
}

async function runDrill(cli: ProgressCli, nameOrId: string, options: DrillOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  await request(session, 'POST', `${path}/drills`, { drill_query: options.query })
  // Only one drill runs at a time, so the newest is the one that was requested.
  const [started] = (await listDrills(session, path)).data
  if (!started) throw new CommandError(`the drill of cluster ${nameOrId} no longer exists`)
  const clusterArgs = clusterArguments(nameOrId, options.org)
  const drill = options.wait ? await watchDrill(cli, path, started, { nameOrId, clusterArgs }) : started
  const hasFailed = drill.result !== null && drill.result !== 'ok'
  if (terminal.json || !hasFailed)
    printResult(terminal, { data: drill }, () => formatDrill(drill, clusterArgs, terminal.colors))
  if (hasFailed) throw new CommandError(`the drill of cluster ${nameOrId} ${drill.result}`)
}

async function watchDrill(
  cli: ProgressCli,
  path: string,
  { id }: PostgresDrill,
  { nameOrId, clusterArgs }: { nameOrId: string; clusterArgs: string },
): Promise<PostgresDrill> {
  const session = cli.session()
  const ended = await pollUntil(
    startProgress(cli.terminal(), cli.progress),
    async () => (await listDrills(session, path)).data.find((drill) => drill.id === id),
    (drill) => {
      if (!drill || drill.status === 'done') return undefined
      return sanitize(`Drill of ${nameOrId}: ${drill.progress ?? drill.status}`)
    },
    `The drill continues. Check its progress with: berth postgres drills ${clusterArgs}`,
  )
  if (!ended) throw new CommandError(`the drill of cluster ${nameOrId} no longer exists`)
  return ended
}

function formatDrill(drill: PostgresDrill, clusterArgs: string, colors: boolean): string {
  const { status, result, target, seconds, answer } = drill
  if (result === null) {
    return `The drill is ${status}. Check its progress with: berth postgres drills ${sanitize(clusterArgs)}`
  }
  const facts: [string, Cell][] = [
    ['result', result],
    ['restored to', formatTime(target)],
    ['took', formatSpan(seconds ?? 0)],
  ]
  const lines = answer === undefined ? [] : ['answer', ...answer.split('\n').map(sanitize)]
  return [block(facts, colors), ...lines].join('\n')
}
