import type { Command } from 'commander'
import type { PostgresCluster, PostgresDiscardedData } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { block, confirm, formatTime, printResult, sanitize } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { clusterArguments, type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'
import { formatPhase } from './restore.ts'

interface RecoverOptions extends OrgOptions {
  yes?: true
  acceptLoss?: true
  discard?: true
  wait: boolean
}

export function addRecoverCommand(postgres: Command, cli: ProgressCli): void {
  const recover = withClusterArgument(postgres.command('recover'))
    .description('rebuild a cluster in place from its archive, after its files were lost or damaged')
    .option('-y, --yes', 'do not ask for confirmation')
    .option('--accept-loss', 'if the archive is damaged, recover what precedes the damage')
    .option('--discard', 'remove the damaged data directories that earlier recoveries have kept')
    .option('--no-wait', 'return without waiting until it is ready')
    .action((nameOrId: string, options: RecoverOptions) =>
      options.discard ? discardData(cli, nameOrId, options) : recoverCluster(cli, nameOrId, options),
    )
  addExamples(
    recover,
    'berth postgres recover shop',
    'berth postgres recover shop --yes --accept-loss',
    'berth postgres recover shop --discard',
  )
}

async function recoverCluster(cli: ProgressCli, nameOrId: string, options: RecoverOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  if (!options.yes) await confirm(terminal, question(cluster))
  const body = options.acceptLoss ? { accept_loss: true } : {}
  const started = await request<Data<PostgresCluster>>(session, 'POST', `${path}/recover`, body)
  const answer = options.wait ? await watchRecovery(cli, path, cluster) : started
  const problem = options.wait ? findProblem(answer.data) : undefined
  if (terminal.json || problem === undefined)
    printResult(terminal, answer, () => formatRecovered(answer.data, terminal.colors))
  if (problem !== undefined) throw new CommandError(problem)
}

function question({ name, id, recovery_window: window }: PostgresCluster): string {
  const loss = window
    ? `Everything archived is restored, at least up to ${formatTime(window.latest)}; later commits that the archive does not have are lost.`
    : 'It has no recovery window.'
  return `Rebuild cluster ${name} (${id}) from its archive? ${loss} Its connections end, and its data directory is kept aside.`
}

/** Has no timeout, because the platform itself fails a recovery that takes too long and gives the reason. */
function watchRecovery(cli: ProgressCli, path: string, { name, organization }: PostgresCluster) {
  const session = cli.session()
  return pollUntil(
    startProgress(cli.terminal(), cli.progress),
    () => request<Data<PostgresCluster>>(session, 'GET', path),
    ({ data: { status, restore } }) =>
      status === 'initializing' ? formatPhase(restore, cli.progress.isTTY === true) : undefined,
    `The recovery continues. Check its progress with: berth postgres show ${clusterArguments(name, organization.slug)}`,
  )
}

function findProblem({ name, status, failure, restore }: PostgresCluster): string | undefined {
  if (failure !== undefined) return `cluster ${name} failed: ${failure}`
  if (restore?.error) return `cluster ${name}: ${restore.error}`
  return status === 'ready' ? undefined : `cluster ${name} is ${status}`
}

function formatRecovered(cluster: PostgresCluster, colors: boolean): string {
  const { name, id, status, restore, organization } = cluster
  const clusterArgs = sanitize(clusterArguments(name, organization.slug))
  const overview = block(
    [
      ['name', name],
      ['id', id],
      ['status', status],
      ['last commit', restore?.replayed_until ? formatTime(restore.replayed_until) : null],
    ],
    colors,
  )
  if (status !== 'ready') return `${overview}\n\nCheck its progress with: berth postgres show ${clusterArgs}`
  return [
    overview,
    '',
    'Users, passwords and endpoints are the same. The damaged data directory is kept;',
    `remove it with:          berth postgres recover ${clusterArgs} --discard`,
  ].join('\n')
}

async function discardData(cli: ProgressCli, nameOrId: string, options: RecoverOptions): Promise<void> {
  if (options.acceptLoss) throw new UsageError('--discard recovers nothing, so --accept-loss cannot be used with it')
  const terminal = cli.terminal()
  const path = await findCluster(cli, nameOrId, options)
  if (!options.yes) await confirm(terminal, `Remove the damaged data directories of cluster ${nameOrId}?`)
  const answer = await request<Data<PostgresDiscardedData>>(cli.session(), 'DELETE', `${path}/recover`)
  const { discarded } = answer.data
  const text = discarded.length === 0 ? 'There is no damaged data directory.' : `Removed ${discarded.join(', ')}.`
  printResult(terminal, answer, () => sanitize(text))
}
