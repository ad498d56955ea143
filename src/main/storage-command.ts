// The commands for the storage pool. They act on this machine and need no running platform.
import { type Command, InvalidArgumentError, Option } from 'commander'
import { formatBytes } from '../cli/bytes.ts'
import { addExamples, type Cli } from '../cli/command.ts'
import { CommandError } from '../cli/errors.ts'
import { block, type Cell, printResult } from '../cli/output.ts'
import { startProgress } from '../cli/progress.ts'
import type { PoolPlan } from '../drivers/storage/create.ts'
import { type PoolFileSystem, poolFileSystems, StorageError } from '../drivers/storage/driver.ts'
import type { StorageReport } from '../drivers/storage/pool.ts'
import { getConfig } from './platform-command.ts'

interface CreateOptions {
  size?: number
  device?: string
  filesystem?: PoolFileSystem
  sparse?: true
  force?: true
  stop?: true
  dryRun?: true
}

export function addStorageCommands(program: Command, cli: Cli): void {
  const storage = program
    .command('storage')
    .description('manage the storage pool, a file system with size limits that the home is moved to')
  addExamples(storage, 'berth storage show', 'berth storage create --dry-run')
  const create = storage
    .command('create')
    .description('create the pool and move the home to it; continues an interrupted move')
    .option(
      '--size <size>',
      'size of an image file in the home, such as 50G; default: 80 % of the free space',
      parseSize,
    )
    .option('--device <device>', 'use this block device instead of an image file')
    .addOption(
      new Option('--filesystem <type>', 'default: the first that this host supports').choices([...poolFileSystems]),
    )
    .option('--sparse', 'let the image file take space on the disk only when it is written')
    .option('--stop', 'stop the platform and all workloads first')
    .option('--force', 'delete what the device holds')
    .option('--dry-run', 'show what would be done')
    .action((options: CreateOptions) => asCommand(() => createStorage(cli, options)))
  addExamples(
    create,
    'berth storage create --dry-run',
    'berth storage create --size 50G --stop',
    'berth storage create --device /dev/sdb',
  )
  const show = storage
    .command('show')
    .description('show size, use and abilities of the file system of the home')
    .action(() => asCommand(() => showStorage(cli)))
  addExamples(show, 'berth storage show', 'berth storage show --json')
  const grow = storage
    .command('grow')
    .description('grow the pool to a size, or to the size that its device has now; the platform may be running')
    .option('--size <size>', 'new size of the image file, such as 100G', parseSize)
    .action((options: { size?: number }) => asCommand(() => growStorage(cli, options.size)))
  addExamples(grow, 'berth storage grow --size 100G')
  const mount = storage
    .command('mount')
    .description('mount the pool, if there is one; "berth up" does this itself, "berth down" unmounts it')
    .action(() => asCommand(() => mountStorage(cli)))
  addExamples(mount, 'berth storage mount')
}

const unitBytes = { M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4 }

export function parseSize(text: string): number {
  const [, number, unit] = /^(\d{1,9})([MGT])i?B?$/i.exec(text) ?? []
  if (!number || !unit) throw new InvalidArgumentError('Write a number with a unit: 500M, 50G or 2T.')
  return Number(number) * unitBytes[unit.toUpperCase() as keyof typeof unitBytes]
}

async function createStorage(cli: Cli, options: CreateOptions): Promise<void> {
  const terminal = cli.terminal()
  const config = getConfig()
  const local = await import('./storage.ts')
  const request = {
    sizeBytes: options.size,
    device: options.device,
    fileSystem: options.filesystem,
    sparse: options.sparse ?? false,
    force: options.force ?? false,
  }
  const plan = await local.planStorage(config, request)
  if (options.dryRun) return printResult(terminal, planView(plan), () => planText(plan, terminal.colors))
  const progress = startProgress(terminal, process.stderr)
  try {
    const report = await local.createStorage(config, plan, options.stop ?? false, ({ unit, done, units }) =>
      progress.show(`copying ${unit}, ${done} of ${units} done`),
    )
    progress.end()
    printResult(terminal, reportView(report), () => reportText(report, terminal.colors))
  } finally {
    progress.end()
  }
}

async function showStorage(cli: Cli): Promise<void> {
  const report = await (await import('./storage.ts')).showStorage(getConfig())
  const terminal = cli.terminal()
  printResult(terminal, reportView(report), () => reportText(report, terminal.colors))
}

async function growStorage(cli: Cli, size: number | undefined): Promise<void> {
  const report = await (await import('./storage.ts')).growStorage(getConfig(), size)
  const terminal = cli.terminal()
  printResult(terminal, reportView(report), () => reportText(report, terminal.colors))
}

async function mountStorage(cli: Cli): Promise<void> {
  const { mountPool } = await import('../drivers/storage/mount.ts')
  const mounted = await mountPool(getConfig().home)
  printResult(cli.terminal(), { mounted }, () =>
    mounted ? 'The storage pool is mounted.' : 'There is no storage pool.',
  )
}

/** A refusal of the driver is the answer to the command and not a defect. */
async function asCommand(work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof StorageError)) throw error
    throw new CommandError(error.message, { cause: error })
  }
}

function planView(plan: PoolPlan) {
  const { device, image, sparse, resumes, rejected } = plan
  const sizes = { file_system: plan.fileSystem, size_bytes: plan.sizeBytes, used_bytes: plan.usedBytes }
  return { device, image, ...sizes, sparse, resumes, rejected }
}

function planText(plan: PoolPlan, colors: boolean): string {
  const lines: [string, Cell][] = [
    ['file system', plan.fileSystem],
    ['on', plan.device ?? `${plan.image}${plan.sparse ? ' (sparse)' : ''}`],
    ['size', plan.sizeBytes > 0 ? formatBytes(plan.sizeBytes) : null],
    ['to copy', formatBytes(plan.usedBytes)],
    ['continues', plan.resumes],
  ]
  const notes = plan.rejected.map((reason) => `not ${reason}`)
  return [block(lines, colors), ...notes, 'Nothing was changed.'].join('\n')
}

function reportView(report: StorageReport) {
  return {
    home: report.home,
    pool: report.pool,
    mounted: report.mounted,
    file_system: report.fileSystem,
    source: report.source,
    size_bytes: report.totalBytes,
    used_bytes: report.usedBytes,
    free_bytes: report.freeBytes,
    limits: report.limits,
    reflinks: report.reflinks,
  }
}

function reportText(report: StorageReport, colors: boolean): string {
  const size = (bytes: number): Cell => (report.totalBytes === 0 ? null : formatBytes(bytes))
  return block(
    [
      ['home', report.home],
      ['pool', report.pool],
      ['mounted', report.pool ? report.mounted : null],
      ['file system', report.fileSystem],
      ['source', report.source],
      ['size', size(report.totalBytes)],
      ['used', size(report.usedBytes)],
      ['free', size(report.freeBytes)],
      ['size limits', report.limits],
      ['shared copies', report.reflinks],
    ],
    colors,
  )
}
