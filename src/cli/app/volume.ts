import type { Command } from 'commander'
import type { ExtendedVolume, Snapshot, Volume } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { block, type Cell, confirm, formatTime, printResult, sanitize, table } from '../output.ts'
import { type AppOptions, appName, appPath, withAppOption } from './option.ts'

interface CreateOptions extends AppOptions {
  region?: string
  size?: number
  snapshotId?: string
  snapshotRetention?: number
}

interface ForkOptions extends AppOptions {
  name?: string
  region?: string
  size?: number
}

export function addVolumeCommands(program: Command, cli: Cli): void {
  const volumes = program
    .command('volumes')
    .alias('volume')
    .alias('vol')
    .description('persistent disks for the machines of an app')
  addExamples(volumes, 'berth volumes create data --size 10 -a web', 'berth volumes list -a web')
  addCreate(volumes, cli)
  addFork(volumes, cli)

  const list = withAppOption(volumes.command('list').alias('ls'))
    .description('list the volumes of an app')
    .action((options: AppOptions) => listVolumes(cli, options))
  addExamples(list, 'berth volumes list -a web')

  const show = withAppOption(volumes.command('show'))
    .description('show a volume')
    .argument('<id>', 'the id of the volume')
    .action((id: string, options: AppOptions) => showVolume(cli, id, options))
  addExamples(show, 'berth volumes show vol_4x9k2m5t7q1w8z3r -a web')

  const extend = withAppOption(volumes.command('extend'))
    .description('increase the size of a volume')
    .argument('<id>', 'the id of the volume')
    .requiredOption('-s, --size <gb>', 'its new size in GB', parseWholeNumber)
    .action((id: string, options: AppOptions & { size: number }) => extendVolume(cli, id, options))
  addExamples(extend, 'berth volumes extend vol_4x9k2m5t7q1w8z3r --size 20 -a web')

  const remove = withAppOption(volumes.command('destroy').alias('delete'))
    .description('destroy volumes; their data is kept for one day')
    .argument('<id...>', 'the ids of the volumes')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((ids: string[], options: AppOptions & { yes?: true }) => destroyVolumes(cli, ids, options))
  addExamples(remove, 'berth volumes destroy vol_4x9k2m5t7q1w8z3r -a web')
  addSnapshots(volumes, cli)
}

function addCreate(volumes: Command, cli: Cli): void {
  const create = withAppOption(volumes.command('create'))
    .description('create a volume')
    .argument('<name>', 'the name that mounts refer to')
    .option('-r, --region <code>', 'the region')
    .option('-s, --size <gb>', 'its size in GB', parseWholeNumber)
    .option('--snapshot-id <id>', 'restore this snapshot into the volume')
    .option('--snapshot-retention <days>', 'how many days its snapshots are kept', parseWholeNumber)
    .action((name: string, options: CreateOptions) => createVolume(cli, name, options))
  addExamples(create, 'berth volumes create data --size 10 -a web')
}

function addFork(volumes: Command, cli: Cli): void {
  const fork = withAppOption(volumes.command('fork'))
    .description('create a volume with a copy of the data of another one')
    .argument('<id>', 'the id of the volume to copy')
    .option('-n, --name <name>', 'the name that mounts refer to; defaults to that of the original')
    .option('-r, --region <code>', 'the region')
    .option('-s, --size <gb>', 'its size in GB; defaults to that of the original', parseWholeNumber)
    .action((id: string, options: ForkOptions) => forkVolume(cli, id, options))
  addExamples(fork, 'berth volumes fork vol_4x9k2m5t7q1w8z3r -a web --name copy')
}

function addSnapshots(volumes: Command, cli: Cli): void {
  const snapshots = volumes.command('snapshots').alias('snapshot').description('snapshots of a volume')
  addExamples(snapshots, 'berth volumes snapshots list vol_4x9k2m5t7q1w8z3r -a web')
  const list = withAppOption(snapshots.command('list').alias('ls'))
    .description('list the snapshots of a volume')
    .argument('<id>', 'the id of the volume')
    .action((id: string, options: AppOptions) => listSnapshots(cli, id, options))
  addExamples(list, 'berth volumes snapshots list vol_4x9k2m5t7q1w8z3r -a web')
  const create = withAppOption(snapshots.command('create'))
    .description('create a snapshot of a volume')
    .argument('<id>', 'the id of the volume')
    .action((id: string, options: AppOptions) => createSnapshot(cli, id, options))
  addExamples(create, 'berth volumes snapshots create vol_4x9k2m5t7q1w8z3r -a web')
}

function volumePath(id: string, options: AppOptions): string {
  return `${appPath(options)}/volumes/${encodeSegment(id)}`
}

async function createVolume(cli: Cli, name: string, options: CreateOptions): Promise<void> {
  const volume = await request<Volume>(cli.session(), 'POST', `${appPath(options)}/volumes`, {
    name,
    region: options.region,
    size_gb: options.size,
    snapshot_id: options.snapshotId,
    snapshot_retention: options.snapshotRetention,
  })
  const size = `${volume.size_gb} GB`
  printResult(cli.terminal(), volume, () => `Created volume ${volume.id} (${sanitize(volume.name)}, ${size}).`)
}

async function forkVolume(cli: Cli, id: string, options: ForkOptions): Promise<void> {
  const session = cli.session()
  const name = options.name ?? (await request<Volume>(session, 'GET', volumePath(id, options))).name
  const { region, size } = options
  const body = { name, source_volume_id: id, region, size_gb: size }
  const volume = await request<Volume>(session, 'POST', `${appPath(options)}/volumes`, body)
  const copied = `Volume ${volume.id} (${sanitize(volume.name)}) is created with a copy of ${sanitize(id)}`
  printResult(cli.terminal(), volume, () => `${copied}; "berth volumes show" shows its state.`)
}

async function listVolumes(cli: Cli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const volumes = await request<Volume[]>(cli.session(), 'GET', `${appPath(options)}/volumes`)
  if (volumes.length === 0 && !terminal.json) {
    return terminal.note(`App ${sanitize(appName(options))} has no volumes; "berth volumes create <name>" creates one.`)
  }
  const rows = volumes.map((one) => [
    one.id,
    one.name,
    one.state,
    `${one.size_gb} GB`,
    one.region,
    one.attached_machine_id,
    formatTime(one.created_at),
  ])
  const headers = ['ID', 'NAME', 'STATE', 'SIZE', 'REGION', 'MACHINE', 'CREATED']
  printResult(terminal, volumes, () => table(headers, rows, terminal.colors))
}

async function showVolume(cli: Cli, id: string, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const volume = await request<Volume>(cli.session(), 'GET', volumePath(id, options))
  const pairs: [string, Cell][] = [
    ['id', volume.id],
    ['name', volume.name],
    ['state', volume.state],
    ['size', `${volume.size_gb} GB`],
    ['used', volume.bytes_used === undefined ? undefined : formatBytes(volume.bytes_used)],
    ['region', volume.region],
    ['machine', volume.attached_machine_id],
    [
      'snapshots',
      volume.auto_backup_enabled ? `daily, kept ${volume.snapshot_retention} days` : 'no automatic snapshots',
    ],
    ['created', formatTime(volume.created_at)],
  ]
  printResult(terminal, volume, () => block(pairs, terminal.colors))
}

async function extendVolume(cli: Cli, id: string, options: AppOptions & { size: number }): Promise<void> {
  const answer = await request<ExtendedVolume>(cli.session(), 'PUT', `${volumePath(id, options)}/extend`, {
    size_gb: options.size,
  })
  const restartNotice = answer.needs_restart ? ' Its machine sees the new size after the next start.' : ''
  printResult(cli.terminal(), answer, () => `Volume ${sanitize(id)} has ${answer.volume.size_gb} GB.${restartNotice}`)
}

async function destroyVolumes(cli: Cli, ids: string[], options: AppOptions & { yes?: true }): Promise<void> {
  const terminal = cli.terminal()
  if (!options.yes) await confirm(terminal, `Destroy ${ids.join(', ')} of app ${appName(options)}?`)
  for (const id of ids) {
    const answer = await request<Volume>(cli.session(), 'DELETE', volumePath(id, options))
    printResult(terminal, answer, () => `Volume ${sanitize(id)} is ${sanitize(answer.state)}.`)
  }
}

async function listSnapshots(cli: Cli, id: string, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const snapshots = await request<Snapshot[]>(cli.session(), 'GET', `${volumePath(id, options)}/snapshots`)
  if (snapshots.length === 0 && !terminal.json) return terminal.note(`Volume ${sanitize(id)} has no snapshots.`)
  const rows = snapshots.map((one) => [
    one.id,
    one.status,
    formatBytes(one.size),
    formatTime(one.created_at),
    `${one.retention_days} days`,
  ])
  const headers = ['ID', 'STATUS', 'SIZE', 'CREATED', 'KEPT']
  printResult(terminal, snapshots, () => table(headers, rows, terminal.colors))
}

async function createSnapshot(cli: Cli, id: string, options: AppOptions): Promise<void> {
  const answer = await request(cli.session(), 'POST', `${volumePath(id, options)}/snapshots`)
  printResult(
    cli.terminal(),
    answer,
    () => `Creating a snapshot of ${sanitize(id)}; "berth volumes snapshots list" shows it.`,
  )
}
