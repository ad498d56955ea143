import type { Command } from 'commander'
import { request, type Session } from '../client.ts'
import { addExamples } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { parseWholeNumber } from '../option.ts'
import { block, type Cell, formatCount, formatTime, printResult, sanitize, table } from '../output.ts'
import { startProgress } from '../progress.ts'
import {
  groupMachines,
  groupOf,
  listMachines,
  type Machine,
  type MachineConfig,
  machinePath,
  replacementMark,
} from './machine-find.ts'
import { type MachineChange, rollOut } from './machine-roll.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'
import {
  createRelease,
  endRelease,
  listReleases,
  type Release,
  type ReleaseDetails,
  releaseMetadata,
} from './release.ts'

interface RollbackOptions extends AppOptions {
  waitTimeout: number
}

export function addReleaseCommands(program: Command, cli: MachineCli): void {
  const releases = program
    .command('releases')
    .alias('release')
    .description('deployments of an app, and the way back to an earlier one')
  addExamples(releases, 'berth releases list -a web', 'berth releases rollback -a web')

  const list = withAppOption(releases.command('list').alias('ls'))
    .description('list the releases of an app, newest first')
    .action((options: AppOptions) => printReleases(cli, options))
  addExamples(list, 'berth releases list -a web', 'berth releases list -a web --json')

  const show = withAppOption(releases.command('show'))
    .description('show a release and the machines that run it')
    .argument('<version>', 'the number of the release', parseWholeNumber)
    .action((version: number, options: AppOptions) => printRelease(cli, version, options))
  addExamples(show, 'berth releases show 7 -a web')

  const rollback = withAppOption(releases.command('rollback'))
    .description('give machines the image and configuration they had in an earlier release, one after another')
    .argument('[version]', 'the release; defaults to the last complete one before the newest', parseWholeNumber)
    .option('--wait-timeout <seconds>', 'timeout for each machine', parseWholeNumber, 300)
    .action((version: number | undefined, options: RollbackOptions) => rollBack(cli, version, options))
    .addHelpText(
      'after',
      `
This is a new release. Volumes, secrets and the number of machines stay as they are. A machine that did not exist then
gets the image of the release. A tag that was moved since then names the image that it names now.`,
    )
  addExamples(rollback, 'berth releases rollback -a web', 'berth releases rollback 7 -a web')
}

async function printReleases(cli: MachineCli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = appName(options)
  const releases = await listReleases(cli.session(), app)
  if (releases.length === 0 && !terminal.json)
    return terminal.note(`App ${sanitize(app)} has no releases; "berth deploy" makes one.`)
  const rows = releases.map((one) => [
    one.version,
    one.status,
    one.imageRef,
    one.deploymentStrategy.toLowerCase(),
    one.user?.email,
    formatTime(one.createdAt),
  ])
  printResult(terminal, releases, () =>
    table(['VERSION', 'STATUS', 'IMAGE', 'STRATEGY', 'BY', 'CREATED'], rows, terminal.colors),
  )
}

async function printRelease(cli: MachineCli, version: number, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = appName(options)
  const session = cli.session()
  const release = findRelease(await listReleases(session, app), app, version)
  const running = (await listMachines(session, app)).filter((machine) => hasRelease(machine.config, version))
  const machines = running.map(({ id }) => id)
  const pairs: [string, Cell][] = [
    ['version', release.version],
    ['status', release.status],
    ['image', release.imageRef],
    ['strategy', release.deploymentStrategy.toLowerCase()],
    ['by', release.user?.email],
    ['created', formatTime(release.createdAt)],
    ['machines', machines.join(', ')],
  ]
  printResult(terminal, { ...release, machines }, () => block(pairs, terminal.colors))
}

function hasRelease({ metadata }: Pick<MachineConfig, 'metadata'>, version: number): boolean {
  return metadata?.fly_release_version === String(version)
}

function findRelease(releases: ReleaseDetails[], app: string, version: number): ReleaseDetails {
  const release = releases.find((one) => one.version === version)
  if (release) return release
  throw new CommandError(`app ${app} has no release ${version}; "berth releases list -a ${app}" lists them`)
}

/** Without a version: the last complete release before the newest. */
export function chooseRelease(releases: ReleaseDetails[], app: string, version: number | undefined): ReleaseDetails {
  const chosen =
    version === undefined
      ? releases.slice(1).find(({ status }) => status === 'complete')
      : findRelease(releases, app, version)
  if (!chosen) throw new CommandError(`app ${app} has no complete release before its newest`)
  if (chosen.status !== 'complete')
    throw new CommandError(`release ${chosen.version} of app ${app} is ${chosen.status}; choose a complete one`)
  return chosen
}

async function rollBack(cli: MachineCli, version: number | undefined, options: RollbackOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = appName(options)
  const session = cli.session()
  const target = chooseRelease(await listReleases(session, app), app, version)
  const machines = [...groupMachines(await listMachines(session, app)).values()].flat()
  if (machines.length === 0)
    throw new UsageError(`app ${app} has no machines created by a deployment; run "berth deploy" first`)
  const earlier = await Promise.all(machines.map((machine) => findEarlierConfig(session, app, machine, target.version)))
  const release = await createRelease(session, { app, image: target.imageRef, strategy: 'rolling' })
  const changes = machines.map(
    (machine, index): MachineChange => ({
      machine,
      config: restoreConfig(machine, earlier[index], target, release),
    }),
  )
  const progress = startProgress(terminal, cli.progress)
  try {
    await rollOut({ session, app, progress, waitSeconds: options.waitTimeout }, changes)
    await endRelease(session, release, 'complete')
  } catch (error) {
    await endRelease(session, release, 'failed').catch(() => undefined) // the original error is reported
    throw error
  }
  const updated = machines.map(({ id }) => id)
  const result = { app, release: release.version, restored: target.version, image: target.imageRef, updated }
  printResult(
    terminal,
    result,
    () =>
      `Rolled app ${sanitize(app)} back to release ${target.version}, as release ${release.version}: updated ${formatCount(updated.length, 'machine')}.`,
  )
}

/** Returns the configuration that the machine had in a release, if it existed then. */
async function findEarlierConfig(
  session: Session,
  app: string,
  { id }: Machine,
  version: number,
): Promise<MachineConfig | undefined> {
  type Version = { user_config: MachineConfig }
  const versions = await request<Version[]>(session, 'GET', `${machinePath(app, id)}/versions`)
  return versions.find(({ user_config: config }) => hasRelease(config, version))?.user_config
}

/** The machine keeps its volumes, whose data is not that of the earlier release. */
export function restoreConfig(
  machine: Machine,
  earlier: MachineConfig | undefined,
  target: Pick<ReleaseDetails, 'imageRef'>,
  release: Release,
): MachineConfig {
  const { mounts: _, ...rest } = earlier ?? { ...machine.config, image: target.imageRef }
  const { mounts } = machine.config
  const { [replacementMark]: __, ...metadata } = rest.metadata ?? {}
  return {
    ...rest,
    ...(mounts && { mounts }),
    metadata: { ...metadata, ...releaseMetadata(groupOf(machine)!, release) },
  }
}
