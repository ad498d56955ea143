import { type Command, Option } from 'commander'
import type { PostgresCluster } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { block, type Cell, formatTime, printResult, sanitize } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { clusterArguments, type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'
import { formatPhase } from './restore.ts'

interface UpgradeOptions extends OrgOptions {
  at?: string
  cancel?: true
  pg?: string
  name?: string
  wait: boolean
}

type Upgrade = NonNullable<PostgresCluster['upgrade']>

export function addUpgradeCommand(postgres: Command, cli: ProgressCli): void {
  const upgrade = withClusterArgument(postgres.command('upgrade'))
    .description('restart a cluster with the newest installed minor version, or copy it to a newer major version')
    .option('--at <time>', 'begin at this time, such as 2026-11-20T03:00:00Z, instead of now')
    .addOption(new Option('--cancel', 'cancel a planned upgrade').conflicts(['at', 'pg', 'name']))
    .addOption(
      new Option('--pg <major>', 'upgrade a copy to this major version, in a new cluster')
        .choices(['17'])
        .conflicts('at'),
    )
    .option('--name <name>', 'the name of the new cluster, with --pg; generated when omitted')
    .option('--no-wait', 'return without waiting until it is done')
    .action((nameOrId: string, options: UpgradeOptions) => upgradeCluster(cli, nameOrId, options))
  addExamples(
    upgrade,
    'berth postgres upgrade shop',
    'berth postgres upgrade shop --at 2026-11-20T03:00:00Z',
    'berth postgres upgrade shop --cancel',
    'berth postgres upgrade shop --pg 17 --name shop-on-17',
  )
}

async function upgradeCluster(cli: ProgressCli, nameOrId: string, options: UpgradeOptions): Promise<void> {
  const { at, pg, name } = options
  if (name !== undefined && pg === undefined)
    throw new UsageError('--name needs --pg: only a major upgrade creates a cluster')
  const terminal = cli.terminal()
  const session = cli.session()
  const path = `${await findCluster(cli, nameOrId, options)}/upgrade`
  if (options.cancel) {
    await request(session, 'DELETE', path)
    return printResult(terminal, {}, () => `The planned upgrade of ${sanitize(nameOrId)} is cancelled.`)
  }
  const started = await request<Data<PostgresCluster>>(session, 'POST', path, { at, pg_major_version: pg, name })
  const shouldWait = options.wait && at === undefined
  const answer = shouldWait ? await watchUpgrade(cli, started.data) : started
  const failure = shouldWait ? findFailure(answer.data) : undefined
  if (terminal.json || failure === undefined)
    printResult(terminal, answer, () => formatUpgrade(answer.data, terminal.colors))
  if (failure !== undefined) throw new CommandError(failure)
}

/** Has no timeout, because the platform itself fails an upgrade that takes too long and gives the reason. */
function watchUpgrade(cli: ProgressCli, { id, name, organization }: PostgresCluster): Promise<Data<PostgresCluster>> {
  const session = cli.session()
  return pollUntil(
    startProgress(cli.terminal(), cli.progress),
    () => request<Data<PostgresCluster>>(session, 'GET', `/v1/postgres/${encodeSegment(id)}`),
    ({ data }) => describeProgress(data, cli.progress.isTTY === true),
    `The upgrade continues. Check its progress with: berth postgres show ${clusterArguments(name, organization.slug)}`,
  )
}

/** Undefined once the upgrade is over, one way or the other. */
export function describeProgress(
  { status, upgrade, restore }: PostgresCluster,
  isLiveLine: boolean,
): string | undefined {
  if (!upgrade || upgrade.phase === 'done' || upgrade.phase === 'failed') return undefined
  if (status !== 'ready' && status !== 'creating' && status !== 'initializing') return undefined
  if (upgrade.phase === 'planned') return 'waiting for the platform'
  if (upgrade.phase === 'restoring') return `restoring a copy: ${formatPhase(restore, isLiveLine)}`
  return upgrade.phase
}

function findFailure({ name, status, upgrade, failure }: PostgresCluster): string | undefined {
  if (failure !== undefined) return `the upgrade to cluster ${name} failed: ${failure}`
  if (status !== 'ready') return `cluster ${name} is ${status}`
  return upgrade?.phase === 'failed' ? `the upgrade of cluster ${name} failed: ${upgrade.error}` : undefined
}

function formatUpgrade(cluster: PostgresCluster, colors: boolean): string {
  const { name, id, status, upgrade, endpoints } = cluster
  const clusterArgs = sanitize(clusterArguments(name, cluster.organization.slug))
  const facts: [string, Cell][] = [
    ['name', name],
    ['id', id],
    ['status', status],
    ['PostgreSQL', cluster.pg_version],
    ['upgrade', upgrade && upgradeText(upgrade)],
  ]
  const text = block(facts, colors)
  if (upgrade?.phase === 'planned') return `${text}\n\nCancel it with: berth postgres upgrade ${clusterArgs} --cancel`
  if (upgrade?.phase !== 'done') return `${text}\n\nCheck its progress with: berth postgres show ${clusterArgs}`
  if (upgrade.kind === 'minor' || !endpoints) return text
  return `${text}\n\nAll passwords are new: berth postgres show ${clusterArgs} --reveal`
}

/** The text for the upgrade in the overview of a cluster. */
export function upgradeText({ phase, from, to, planned_at, finished_at, error }: Upgrade): string {
  const versions = `from ${from} to ${to}`
  if (phase === 'planned') return `${versions}, planned for ${planned_at === null ? 'now' : formatTime(planned_at)}`
  if (phase === 'failed') return `${versions} failed: ${error}`
  return phase === 'done' ? `${versions}, done ${formatTime(finished_at)}` : `${versions}, ${phase}`
}

/** The running version, and the installed one if that is newer. */
export function versionText({
  pg_version: running,
  pg_newest_version: newest,
  pg_major_version: major,
}: PostgresCluster): string {
  if (running === null) return major
  return newest === null || newest === running ? running : `${running} (${newest} is installed)`
}
