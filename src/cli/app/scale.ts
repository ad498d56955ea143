import type { Command } from 'commander'
import { addExamples } from '../command.ts'
import { UsageError } from '../errors.ts'
import { confirm, formatCount, printResult, sanitize, table } from '../output.ts'
import { startProgress } from '../progress.ts'
import { copyMachine, destroyMachine } from './machine-copy.ts'
import { groupMachines, listMachines, type Machine } from './machine-find.ts'
import { type Rollout, waitUntilUp, withLastLogLines } from './machine-roll.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'

interface CountOptions extends AppOptions {
  process?: string
  region?: string
  yes?: true
}

const scaleTimeoutSeconds = 300

export function addScaleCommands(program: Command, cli: MachineCli): void {
  const scale = program.command('scale').description('the number and size of the machines of an app')
  addExamples(scale, 'berth scale count 3 -a web', 'berth scale show -a web')

  const count = withAppOption(scale.command('count'))
    .description('create or destroy machines to reach a number')
    .argument('<count>', 'a number, or one per process group: web=2 worker=1')
    .argument('[more...]', 'more process groups')
    .option('--process <group>', 'the process group a plain number is for, if the app has several')
    .option('-r, --region <code>', 'the region of new machines; defaults to that of the existing ones')
    .option('-y, --yes', 'do not ask before destroying machines')
    .action((first: string, more: string[], options: CountOptions) => scaleCount(cli, [first, ...more], options))
  addExamples(count, 'berth scale count 3 -a web', 'berth scale count web=2 worker=1 -a shop --yes')

  const show = withAppOption(scale.command('show'))
    .description('show the number and size of the machines of each process group')
    .action((options: AppOptions) => showScale(cli, options))
  addExamples(show, 'berth scale show -a web')
}

export function parseCounts(words: string[], groups: string[], process?: string): Map<string, number> {
  const counts = new Map<string, number>()
  for (const word of words) {
    const match = /^(?:([^=]+)=)?(\d{1,4})$/.exec(word)
    if (!match) throw new UsageError(`"${word}" is neither a number nor of the form group=number`)
    const group = match[1] ?? process ?? (groups.length === 1 ? groups[0]! : undefined)
    if (group === undefined) throw new UsageError(`name the process group with --process: ${groups.join(', ')}`)
    if (!groups.includes(group))
      throw new UsageError(`there is no process group "${group}"; the app has ${groups.join(', ')}`)
    if (counts.has(group)) throw new UsageError(`"${group}" is given twice`)
    counts.set(group, Number(match[2]))
  }
  return counts
}

async function scaleCount(cli: MachineCli, words: string[], options: CountOptions): Promise<void> {
  const app = appName(options)
  const session = cli.session()
  const terminal = cli.terminal()
  const groups = groupMachines(await listMachines(session, app))
  if (groups.size === 0)
    throw new UsageError(`app ${app} has no machines created by a deployment; run "berth deploy" first`)
  const counts = parseCounts(words, [...groups.keys()], options.process)
  const surplus = [...counts].flatMap(([group, count]) => machinesToDestroy(groups.get(group)!, count))
  if (surplus.length > 0 && !options.yes) {
    await confirm(terminal, `Destroy ${formatCount(surplus.length, 'machine')} of app ${app}?`)
  }
  const progress = startProgress(terminal, cli.progress)
  const rollout: Rollout = { session, app, progress, waitSeconds: scaleTimeoutSeconds }
  const created: string[] = []
  try {
    for (const [group, count] of counts)
      created.push(...(await addMachines(rollout, groups.get(group)!, count, options.region)))
    for (const { id } of surplus) await destroyMachine(rollout, id)
  } finally {
    progress.end()
  }
  const result = { created, destroyed: surplus.map(({ id }) => id), counts: Object.fromEntries(counts) }
  printResult(terminal, result, () => `App ${sanitize(app)} has ${formatCounts(counts, groups.size)}.`)
}

function formatCounts(counts: Map<string, number>, groups: number): string {
  const inGroup = (group: string) => (groups === 1 ? '' : ` in group ${sanitize(group)}`)
  return [...counts].map(([group, count]) => `${formatCount(count, 'machine')}${inGroup(group)}`).join(', ')
}

/** Picks stopped machines first, then the newest ones. */
export function machinesToDestroy(machines: Machine[], count: number): Machine[] {
  const isUp = ({ state }: Machine) => Number(state === 'started')
  const order = machines.toSorted((a, b) => isUp(a) - isUp(b) || b.created_at.localeCompare(a.created_at))
  return order.slice(0, Math.max(0, machines.length - count))
}

async function addMachines(
  rollout: Rollout,
  machines: Machine[],
  count: number,
  region: string | undefined,
): Promise<string[]> {
  const from = machines.find(({ state }) => state === 'started') ?? machines[0]!
  const created: string[] = []
  while (machines.length + created.length < count) {
    const made = await copyMachine(rollout, from, region === undefined ? {} : { region })
    created.push(made.id)
    rollout.progress.show(`Starting machine ${made.id}`)
    await withLastLogLines(rollout, made.id, () => waitUntilUp(rollout, made.id))
  }
  return created
}

async function showScale(cli: MachineCli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = appName(options)
  const groups = groupMachines(await listMachines(cli.session(), app))
  const shown = [...groups].map(([group, machines]) => {
    const { guest } = machines[0]!.config
    const regions = [...new Set(machines.map(({ region }) => region))]
    return { group, count: machines.length, ...guest, regions }
  })
  if (shown.length === 0 && !terminal.json)
    return terminal.note(`App ${sanitize(app)} has no machines created by a deployment.`)
  const rows = shown.map((one) => [
    one.group,
    one.count,
    one.cpu_kind,
    one.cpus,
    one.memory_mb === undefined ? undefined : `${one.memory_mb} MB`,
    one.regions.join(', '),
  ])
  const headers = ['GROUP', 'COUNT', 'KIND', 'CPUS', 'MEMORY', 'REGIONS']
  printResult(terminal, shown, () => table(headers, rows, terminal.colors))
}
