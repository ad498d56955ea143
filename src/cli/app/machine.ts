import type { Command } from 'commander'
import type { WaitForMachineResponse } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { block, type Cell, confirm, formatTime, printResult, sanitize, table } from '../output.ts'
import { startProgress } from '../progress.ts'
import { addMachineChange } from './machine-change.ts'
import { addMachineConsole, type ConsoleCli } from './machine-console.ts'
import { addMachineExec } from './machine-exec.ts'
import {
  describeExit,
  describeRestarts,
  getMachine,
  listMachines,
  type Machine,
  type MachineEvent,
  machinePath,
  waitForState,
} from './machine-find.ts'
import { addMachineLogs } from './machine-log.ts'
import { addMachineProcess } from './machine-process.ts'
import { addMachineRun } from './machine-run.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'

interface DestroyOptions extends AppOptions {
  force?: true
  yes?: true
}

interface StopOptions extends AppOptions {
  signal?: string
  timeout?: number
}

const settleTimeoutSeconds = 330 // above the five minutes a program may take to stop

export function addMachineCommands(program: Command, cli: ConsoleCli): void {
  const machines = program
    .command('machine')
    .alias('machines')
    .alias('m')
    .description('machines of an app; each runs a program from an image')
  addExamples(
    machines,
    'berth machine run nginx -a web --port 80:80/tcp:http',
    'berth machine list -a web',
    'berth machine exec 1857156b526dd8 -a web -- ls /',
    'berth machine console 1857156b526dd8 -a web',
  )
  addMachineRun(machines, cli)
  addReadCommands(machines, cli)
  addLifecycleCommands(machines, cli)
  addMachineChange(machines, cli)
  addRoutingCommands(machines, cli)
  addMachineExec(machines, cli)
  addMachineConsole(machines, cli)
  addMachineProcess(machines, cli)
  addMachineLogs(machines, cli)
}

function addReadCommands(machines: Command, cli: MachineCli): void {
  const list = withAppOption(machines.command('list').alias('ls'))
    .description('list the machines of an app, oldest first')
    .action((options: AppOptions) => printMachines(cli, options))
  addExamples(list, 'berth machine list -a web', 'berth machine list -a web --json')

  const status = withAppOption(machines.command('status').alias('show'))
    .description('show a machine, its checks and its last events')
    .argument('<id>', 'the id of the machine')
    .action((id: string, options: AppOptions) => printMachine(cli, id, options))
  addExamples(status, 'berth machine status 1857156b526dd8 -a web')

  const events = withAppOption(machines.command('events'))
    .description('list the events of a machine, newest first')
    .argument('<id>', 'the id of the machine')
    .option('-n, --limit <count>', 'maximum number of events', parseWholeNumber, 20)
    .action((id: string, options: AppOptions & { limit: number }) => printEvents(cli, id, options))
  addExamples(events, 'berth machine events 1857156b526dd8 -a web')

  const wait = withAppOption(machines.command('wait'))
    .description('wait until a machine reaches a state; exits with 1 on timeout')
    .argument('<id>', 'the id of the machine')
    .option('--state <state>', 'the state, or "settled" for any state that is not transitional', 'started')
    .option('--timeout <seconds>', 'timeout; at most 60', parseWholeNumber, 60)
    .action((id: string, options: AppOptions & { state: string; timeout: number }) => waitForMachine(cli, id, options))
  addExamples(wait, 'berth machine wait 1857156b526dd8 -a web --state stopped')
}

function addLifecycleCommands(machines: Command, cli: MachineCli): void {
  const start = withMachineArguments(machines.command('start'))
    .description('start machines that are stopped or suspended')
    .action((ids: string[], options: AppOptions) => sendCommand(cli, ids, options, 'start', 'started'))
  addExamples(start, 'berth machine start 1857156b526dd8 -a web')

  const stop = withMachineArguments(machines.command('stop'))
    .description('stop machines; files outside of volumes are lost with the next start')
    .option('-s, --signal <name>', 'the signal to send; defaults to the one in their configuration')
    .option('--timeout <seconds>', 'kill them after this time', parseWholeNumber)
    .action((ids: string[], options: StopOptions) => stopMachines(cli, ids, options))
  addExamples(stop, 'berth machine stop 1857156b526dd8 -a web', 'berth machine stop 1857156b526dd8 -a web -s SIGTERM')

  const restart = withMachineArguments(machines.command('restart'))
    .description('stop machines and start them again')
    .action((ids: string[], options: AppOptions) => sendCommand(cli, ids, options, 'restart', 'started'))
  addExamples(restart, 'berth machine restart 1857156b526dd8 -a web')

  const suspend = withMachineArguments(machines.command('suspend'))
    .description('freeze machines; they stay in memory and continue with the next start')
    .action((ids: string[], options: AppOptions) => sendCommand(cli, ids, options, 'suspend', 'suspended'))
  addExamples(suspend, 'berth machine suspend 1857156b526dd8 -a web')

  const destroy = withMachineArguments(machines.command('destroy').alias('rm'))
    .description('destroy machines, and wait until they are gone; their volumes stay')
    .option('--force', 'also destroy machines that are running')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((ids: string[], options: DestroyOptions) => destroyMachines(cli, ids, options))
  addExamples(
    destroy,
    'berth machine destroy 1857156b526dd8 -a web',
    'berth machine rm 1857156b526dd8 -a web --force -y',
  )
}

function addRoutingCommands(machines: Command, cli: MachineCli): void {
  const cordon = withMachineArguments(machines.command('cordon'))
    .description('stop routing requests to machines')
    .action((ids: string[], options: AppOptions) => sendCommand(cli, ids, options, 'cordon'))
  addExamples(cordon, 'berth machine cordon 1857156b526dd8 -a web')

  const uncordon = withMachineArguments(machines.command('uncordon'))
    .description('route requests to machines again')
    .action((ids: string[], options: AppOptions) => sendCommand(cli, ids, options, 'uncordon'))
  addExamples(uncordon, 'berth machine uncordon 1857156b526dd8 -a web')
}

function withMachineArguments(machines: Command): Command {
  return withAppOption(machines).argument('<id...>', 'the ids of the machines')
}

async function printMachines(cli: Cli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = appName(options)
  const machines = await listMachines(cli.session(), app)
  if (machines.length === 0 && !terminal.json) {
    return terminal.note(`App ${sanitize(app)} has no machines; "berth deploy" and "berth machine run" create some.`)
  }
  const rows = machines.map((one) => [
    one.id,
    one.name,
    formatState(one),
    formatChecks(one),
    one.region,
    one.config.metadata?.fly_process_group,
    formatImage(one),
    one.private_ip,
    formatTime(one.created_at),
  ])
  const headers = ['ID', 'NAME', 'STATE', 'CHECKS', 'REGION', 'GROUP', 'IMAGE', 'PRIVATE ADDRESS', 'CREATED']
  printResult(terminal, machines, () => table(headers, rows, terminal.colors))
}

function formatState({ state, cordoned, restart_count: count, next_restart_at: next }: Machine): string {
  const restarts = count > 0 ? [`${count} restart${count === 1 ? '' : 's'}`] : []
  return [state, ...(cordoned ? ['cordoned'] : []), ...(next ? ['waiting to restart'] : []), ...restarts].join(', ')
}

function formatChecks({ checks = [] }: Machine): string | undefined {
  if (checks.length === 0) return undefined
  return `${checks.filter(({ status }) => status === 'passing').length} of ${checks.length} pass`
}

function formatImage({ image_ref: image, config }: Machine): string {
  if (!image) return config.image
  return `${image.repository}${image.tag ? `:${image.tag}` : ''}`
}

async function printMachine(cli: Cli, id: string, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const machine = await getMachine(cli.session(), appName(options), id)
  const { guest, mounts } = machine.config
  const size = guest && `${guest.cpus} ${guest.cpu_kind} CPU${guest.cpus === 1 ? '' : 's'}, ${guest.memory_mb} MB`
  const pairs: [string, Cell][] = [
    ['id', machine.id],
    ['name', machine.name],
    ['state', formatState(machine)],
    ...(machine.failure ? [['failure', machine.failure] as [string, Cell]] : []),
    ...(machine.last_exit ? [['last exit', formatLastExit(machine)] as [string, Cell]] : []),
    ...(machine.warnings ?? []).map((text) => ['warning', text] as [string, Cell]),
    ['version', machine.instance_id],
    ['region', machine.region],
    ['group', machine.config.metadata?.fly_process_group],
    ['image', machine.config.image],
    ['digest', machine.image_ref?.digest],
    ['private address', machine.private_ip],
    ['size', size],
    ['volumes', (mounts ?? []).map(({ volume, path }) => `${volume} at ${path}`).join(', ')],
    ['created', formatTime(machine.created_at)],
    ['updated', formatTime(machine.updated_at)],
  ]
  const checks = (machine.checks ?? []).map(({ name, status, output }) => [name, status, output.split('\n')[0]])
  printResult(terminal, machine, () =>
    [
      block(pairs, terminal.colors),
      ...(checks.length > 0 ? ['', table(['CHECK', 'STATUS', 'OUTPUT'], checks, terminal.colors)] : []),
      ...(machine.events?.length ? ['', eventTable(machine.events, terminal.colors)] : []),
    ].join('\n'),
  )
}

function formatLastExit(machine: Machine): string {
  return machine.restart_count > 0 ? describeRestarts(machine) : `its program ${describeExit(machine.last_exit!)}`
}

async function printEvents(cli: Cli, id: string, options: AppOptions & { limit: number }): Promise<void> {
  const terminal = cli.terminal()
  const path = `${machinePath(appName(options), id)}/events?limit=${options.limit}`
  const events = await request<MachineEvent[]>(cli.session(), 'GET', path)
  printResult(terminal, events, () => eventTable(events, terminal.colors))
}

function eventTable(events: MachineEvent[], colors: boolean): string {
  const rows = events.map(({ timestamp, type, status, source, request }) => {
    const what = request?.error ?? (request?.exit_event && describeExit(request.exit_event))
    return [formatTime(new Date(timestamp).toISOString()), type, status, source, what]
  })
  return table(['TIME', 'EVENT', 'STATE', 'BY', 'WHAT'], rows, colors)
}

async function waitForMachine(
  cli: Cli,
  id: string,
  { state, timeout, ...options }: AppOptions & { state: string; timeout: number },
): Promise<void> {
  const { openStream } = await import('../stream.ts')
  const query = new URLSearchParams({ state, timeout: String(timeout) })
  const path = `${machinePath(appName(options), id)}/wait?${query}`
  const answer: WaitForMachineResponse = JSON.parse(
    String(Buffer.concat(await (await openStream(cli.session(), { method: 'GET', path })).toArray())),
  )
  printResult(cli.terminal(), answer, () => `Machine ${sanitize(id)} is ${sanitize(answer.state)}.`)
}

/** Sends a command to each machine and, if a state is given, waits for it. */
async function sendCommand(
  cli: MachineCli,
  ids: string[],
  options: AppOptions,
  operation: string,
  state?: string,
  body: object = {},
): Promise<void> {
  const app = appName(options)
  const session = cli.session()
  const terminal = cli.terminal()
  for (const id of ids) {
    const answer = await request(session, 'POST', `${machinePath(app, id)}/${operation}`, body)
    if (state !== undefined) await waitWithProgress(cli, app, id, operation, state)
    printResult(terminal, answer, () => `Machine ${sanitize(id)} is ${state ?? `${operation}ed`}.`)
  }
}

async function waitWithProgress(
  cli: MachineCli,
  app: string,
  id: string,
  operation: string,
  state: string,
): Promise<void> {
  const progress = startProgress(cli.terminal(), cli.progress)
  progress.show(`Machine ${id}: ${operation}`)
  try {
    await waitForState(cli.session(), app, { id }, state, settleTimeoutSeconds)
  } finally {
    progress.end()
  }
}

async function stopMachines(cli: MachineCli, ids: string[], options: StopOptions): Promise<void> {
  const { signal, timeout } = options
  const body = { signal, ...(timeout !== undefined && { timeout: `${timeout}s` }) }
  await sendCommand(cli, ids, options, 'stop', 'stopped', body)
}

async function destroyMachines(cli: MachineCli, ids: string[], options: DestroyOptions): Promise<void> {
  const app = appName(options)
  const terminal = cli.terminal()
  if (!options.yes) await confirm(terminal, `Destroy ${ids.join(', ')} of app ${app}?`)
  for (const id of ids) {
    const path = `${machinePath(app, id)}${options.force ? '?force=true' : ''}`
    const answer = await request(cli.session(), 'DELETE', path)
    await waitWithProgress(cli, app, id, 'destroy', 'destroyed')
    printResult(terminal, answer, () => `Destroyed machine ${sanitize(id)}.`)
  }
}
