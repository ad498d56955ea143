import type { Command } from 'commander'
import type { PostgresDrill } from '../api-types.ts'
import { request, type Session } from '../client.ts'
import { addExamples, type Cli, type ProgressCli } from '../command.ts'
import { Failure } from '../failure.ts'
import { block, type Cell, printAnswer, table, timeText, visible } from '../output.ts'
import { startProgress, watch } from '../progress.ts'
import { spanText } from './backup.ts'
import { type Data, findCluster, type InOrg, takesCluster, wordsFor } from './find.ts'

interface DrillOptions extends InOrg {
  query?: string
  wait: boolean
}

export function addDrillCommands(postgres: Command, cli: ProgressCli): void {
  const drills = takesCluster(postgres.command('drills'))
    .description('list the restore drills of a cluster, newest first')
    .action((given: string, options: InOrg) => printDrills(cli, given, options))
  addExamples(drills, 'berth postgres drills shop', 'berth postgres drills shop --json')

  const drill = takesCluster(postgres.command('drill'))
    .description('try out whether a cluster can be restored, in a scratch cluster that is deleted again')
    .option('--query <sql>', 'what to ask the restored data, here and in later drills; an empty one for nothing')
    .option('--no-wait', 'return as soon as it is asked for')
    .action((given: string, options: DrillOptions) => runDrill(cli, given, options))
  addExamples(drill, 'berth postgres drill shop', "berth postgres drill shop --query 'select count(*) from orders'")
}

/** Newest first. */
function listDrills(session: Session, clusterPath: string): Promise<Data<PostgresDrill[]>> {
  return request(session, 'GET', `${clusterPath}/drills`)
}

async function printDrills(cli: Cli, given: string, options: InOrg): Promise<void> {
  const terminal = cli.terminal()
  const answer = await listDrills(cli.session(), await findCluster(cli, given, options))
  if (answer.data.length === 0 && !terminal.json) {
    return terminal.note(`Cluster ${visible(given)} has had no drill yet; "berth postgres drill" runs one.`)
  }
  const rows = answer.data.map((drill): Cell[] => [
    timeText(drill.created_at),
    drill.status,
    timeText(drill.target),
    drill.seconds === null ? null : spanText(drill.seconds),
    drill.result ?? drill.progress,
  ])
  const headers = ['ASKED FOR', 'STATUS', 'RESTORED TO', 'TOOK', 'RESULT']
  printAnswer(terminal, answer, () => table(headers, rows, terminal.colors))
}

async function runDrill(cli: ProgressCli, given: string, options: DrillOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const path = await findCluster(cli, given, options)
  await request(session, 'POST', `${path}/drills`, { drill_query: options.query })
  // Only one is under way at a time, so that the newest is the one that was asked for.
  const [begun] = (await listDrills(session, path)).data
  if (!begun) throw new Failure(`the drill of cluster ${given} is gone`)
  const which = wordsFor(given, options.org)
  const drill = options.wait ? await watchDrill(cli, path, begun, { given, which }) : begun
  const isBad = drill.result !== null && drill.result !== 'ok'
  if (terminal.json || !isBad) printAnswer(terminal, { data: drill }, () => drillText(drill, which, terminal.colors))
  if (isBad) throw new Failure(`the drill of cluster ${given} ${drill.result}`)
}

async function watchDrill(
  cli: ProgressCli,
  path: string,
  { id }: PostgresDrill,
  { given, which }: { given: string; which: string },
): Promise<PostgresDrill> {
  const session = cli.session()
  const ended = await watch(
    startProgress(cli.terminal(), cli.progress),
    async () => (await listDrills(session, path)).data.find((drill) => drill.id === id),
    (drill) => {
      if (!drill || drill.status === 'done') return undefined
      return visible(`Drill of ${given}: ${drill.progress ?? drill.status}`)
    },
    `The drill goes on. See how it comes along with: berth postgres drills ${which}`,
  )
  if (!ended) throw new Failure(`the drill of cluster ${given} is gone`)
  return ended
}

function drillText(drill: PostgresDrill, which: string, colors: boolean): string {
  const { status, result, target, seconds, answer } = drill
  if (result === null) {
    return `The drill is ${status}. See how it comes along with: berth postgres drills ${visible(which)}`
  }
  const facts: [string, Cell][] = [
    ['result', result],
    ['restored to', timeText(target)],
    ['took', spanText(seconds ?? 0)],
  ]
  const lines = answer === undefined ? [] : ['answer', ...answer.split('\n').map(visible)]
  return [block(facts, colors), ...lines].join('\n')
}
