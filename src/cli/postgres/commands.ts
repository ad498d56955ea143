import { type Command, Option } from 'commander'
import type { PostgresCluster } from '../api-types.ts'
import { encodeSegment, request, requestIfPresent } from '../client.ts'
import { addExamples, type Cli, defaultOrg, type ProgressCli } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { collect, parseWholeNumber } from '../option.ts'
import { block, confirm, formatTime, printResult, sanitize, table } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { addAdoptCommand } from './adopt.ts'
import { addAttachCommands } from './attach.ts'
import { addBackupCommands } from './backup.ts'
import { addConnectCommands, type RunPsql } from './connect.ts'
import { addDatabaseCommands } from './database.ts'
import { addDrillCommands } from './drill.ts'
import { clusterArguments, type Data, findCluster, listClusters, type OrgOptions, withClusterArgument } from './find.ts'
import { addImportCommand } from './import.ts'
import { addLogCommand } from './log.ts'
import { addRecoverCommand } from './recover.ts'
import { addRestoreCommands } from './restore.ts'
import { addShowCommand } from './show.ts'
import { addUpdateCommand, parseRetention, type Retention, retentionHelp } from './update.ts'
import { addUpgradeCommand } from './upgrade.ts'
import { addUserCommands } from './user.ts'
import { addWindowCommand } from './window.ts'

export interface PostgresCli extends ProgressCli {
  runPsql: RunPsql
}

interface CreateOptions extends OrgOptions {
  plan: string
  region?: string
  pg: string
  disk?: number
  postgis?: true
  extension?: string[]
  poolMode?: string
  retention?: Retention
  wait: boolean
}

const destroyTimeoutSeconds = 120

export function addPostgresCommands(program: Command, cli: PostgresCli): void {
  const postgres = program.command('postgres').alias('pg').description('managed PostgreSQL clusters')
  addExamples(
    postgres,
    'berth postgres create shop',
    'berth postgres connect shop',
    'berth postgres show shop --reveal',
    'berth postgres restore shop --to 5m-ago',
    'berth pg users create shop reporting --role reader',
  )
  addCreate(postgres, cli)
  addList(postgres, cli)
  addShowCommand(postgres, cli)
  addUpdateCommand(postgres, cli)
  addDestroy(postgres, cli)
  addConnectCommands(postgres, cli)
  addUserCommands(postgres, cli)
  addDatabaseCommands(postgres, cli)
  addAttachCommands(postgres, cli)
  addLogCommand(postgres, cli)
  addAdoptCommand(postgres, cli)
  addBackupCommands(postgres, cli)
  addRestoreCommands(postgres, cli)
  addRecoverCommand(postgres, cli)
  addWindowCommand(postgres, cli)
  addDrillCommands(postgres, cli)
  addImportCommand(postgres, cli)
  addUpgradeCommand(postgres, cli)
}

function addCreate(postgres: Command, cli: PostgresCli): void {
  const create = postgres
    .command('create')
    .description('create a cluster and wait until it is ready')
    .argument('[name]', 'lowercase letters, digits and dashes, unique in the organization; generated when omitted')
    .option('--plan <plan>', 'CPU and memory: basic, starter, launch, scale or performance', 'basic')
    .option('--region <code>', 'the region; defaults to the first region of the platform')
    .option('--org <slug>', 'the organization it belongs to', defaultOrg)
    .addOption(new Option('--pg <major>', 'the version of PostgreSQL').choices(['16', '17']).default('17'))
    .option('--disk <gigabytes>', 'disk size; 10 when omitted', parseWholeNumber)
    .option('--postgis', 'enable PostGIS in its first database, and allow it in the others')
    .option('--extension <name>', 'an extension to create in its first database; may be given several times', collect)
    .addOption(
      new Option('--pool-mode <mode>', 'when the pooler releases a server connection; session when omitted').choices([
        'session',
        'transaction',
      ]),
    )
    .option('--retention <days>', `${retentionHelp}; the number of the platform when omitted`, parseRetention)
    .option('--no-wait', 'return without waiting until it is ready')
    .action((name: string | undefined, options: CreateOptions) => createCluster(cli, name, options))
  addExamples(
    create,
    'berth postgres create shop',
    'berth postgres create shop --plan launch --disk 50 --pool-mode transaction',
    'berth postgres create search --extension vector --extension pg_trgm',
    'berth postgres create --pg 16 --no-wait --json',
  )
}

async function createCluster(cli: PostgresCli, name: string | undefined, options: CreateOptions): Promise<void> {
  const terminal = cli.terminal()
  // For an empty name the platform would generate one, which hides an unset variable in a script.
  if (name?.trim() === '') throw new UsageError('the name is empty; omit it to generate one')
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', '/v1/postgres', {
    name,
    org_slug: options.org,
    plan: options.plan,
    region: options.region,
    pg_major_version: options.pg,
    disk_size_gb: options.disk,
    postgis_enabled: options.postgis,
    extensions: options.extension,
    pool_mode: options.poolMode,
    retention_days: options.retention === 'default' ? null : options.retention,
  })
  const answer = options.wait ? await watchUntilSettled(cli, created.data) : created
  const cluster = answer.data
  const hasFailed = options.wait && cluster.status !== 'ready'
  if (terminal.json || !hasFailed) printResult(terminal, answer, () => formatCreated(cluster, terminal.colors))
  if (hasFailed) throw creationError(cluster)
}

function creationError({ name, organization, status, failure }: PostgresCluster): CommandError {
  if (failure === undefined) return new CommandError(`cluster ${name} is ${status}`)
  const remedy = `Its name stays taken until it is destroyed: berth postgres destroy ${clusterArguments(name, organization.slug)}`
  return new CommandError(`cluster ${name} failed: ${failure}`, { details: [remedy] })
}

/** Has no timeout, because the platform itself fails a cluster that takes too long and gives the reason. */
function watchUntilSettled(cli: PostgresCli, cluster: PostgresCluster): Promise<Data<PostgresCluster>> {
  const { id, name, organization } = cluster
  const session = cli.session()
  const gone: Data<PostgresCluster> = { data: { ...cluster, status: 'deleted' } }
  const showCommand = `berth postgres show ${clusterArguments(name, organization.slug)}`
  return pollUntil(
    startProgress(cli.terminal(), cli.progress),
    async () => (await requestIfPresent<Data<PostgresCluster>>(session, `/v1/postgres/${encodeSegment(id)}`)) ?? gone,
    ({ data }) => (settledStatuses.has(data.status) ? undefined : `Cluster ${sanitize(name)} is ${data.status}`),
    `Cluster ${name} is still being created. Check its progress with: ${showCommand}`,
  )
}

const settledStatuses = new Set(['ready', 'failed', 'deleting', 'deleted'])

function formatCreated(cluster: PostgresCluster, colors: boolean): string {
  const { name, id, status, endpoints } = cluster
  const clusterArgs = sanitize(clusterArguments(name, cluster.organization.slug))
  if (!endpoints) {
    const overview = block(Object.entries({ name, id, status }), colors)
    return `${overview}\n\nCheck its progress with: berth postgres show ${clusterArgs}`
  }
  const { direct, pooler } = endpoints.primary
  const addresses = { direct: `${direct.host}:${direct.port}`, pooler: `${pooler.host}:${pooler.port}` }
  return [
    block(Object.entries({ name, id, ...addresses }), colors),
    '',
    `Connect with:            berth postgres connect ${clusterArgs}`,
    `See connection strings:  berth postgres show ${clusterArgs} --reveal`,
  ].join('\n')
}

function addList(postgres: Command, cli: Cli): void {
  const list = postgres
    .command('list')
    .alias('ls')
    .description('list the clusters of an organization, oldest first')
    .option('--org <slug>', 'the organization', defaultOrg)
    .option('--deleted', 'include deleted clusters')
    .action((options: OrgOptions & { deleted?: true }) => printClusters(cli, options.org, options.deleted === true))
  addExamples(list, 'berth postgres list', 'berth pg ls --org acme --deleted', 'berth postgres list --json')
}

async function printClusters(cli: Cli, org: string, includeDeleted: boolean): Promise<void> {
  const terminal = cli.terminal()
  const answer = await listClusters(cli.session(), org, includeDeleted)
  if (answer.data.length === 0 && !terminal.json) {
    const command = clusterArguments('berth postgres create', org)
    return terminal.note(`No clusters in ${sanitize(org)}; "${sanitize(command)}" creates one.`)
  }
  const rows = answer.data.map((cluster) => [
    cluster.name,
    cluster.id,
    cluster.status,
    cluster.plan,
    cluster.region,
    cluster.attached_apps.map(({ name }) => name).join(', '),
    formatTime(cluster.created_at),
    ...(includeDeleted ? [formatTime(cluster.deleted_at ?? null)] : []),
  ])
  const headers = ['NAME', 'ID', 'STATUS', 'PLAN', 'REGION', 'APPS', 'CREATED', ...(includeDeleted ? ['DELETED'] : [])]
  printResult(terminal, answer, () => table(headers, rows, terminal.colors))
}

function addDestroy(postgres: Command, cli: PostgresCli): void {
  const destroy = withClusterArgument(postgres.command('destroy'))
    .description('destroy a cluster with all its data, and wait until it is gone')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((nameOrId: string, options: OrgOptions & { yes?: true }) => destroyCluster(cli, nameOrId, options))
  addExamples(destroy, 'berth postgres destroy shop', 'berth postgres destroy shop --org acme --yes')
}

async function destroyCluster(cli: PostgresCli, nameOrId: string, options: OrgOptions & { yes?: true }): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  const question = `Destroy cluster ${cluster.name} (${cluster.id}) of organization ${cluster.organization.slug} with all its data?`
  if (!options.yes) await confirm(terminal, question)
  const answer = await request(session, 'DELETE', path)
  await watchUntilGone(cli, path, cluster.name)
  printResult(terminal, answer, () => `Destroyed cluster ${sanitize(cluster.name)}.`)
}

async function watchUntilGone(cli: PostgresCli, path: string, name: string): Promise<void> {
  const session = cli.session()
  const deadline = Date.now() + destroyTimeoutSeconds * 1000
  const remaining = await pollUntil(
    startProgress(cli.terminal(), cli.progress),
    () => requestIfPresent<Data<PostgresCluster>>(session, path),
    (seen) => (seen && Date.now() < deadline ? `Cluster ${sanitize(name)} is ${seen.data.status}` : undefined),
    `Cluster ${name} is still being destroyed.`,
  )
  if (remaining) {
    throw new CommandError(
      `cluster ${name} still exists after ${destroyTimeoutSeconds} seconds; the deletion continues`,
    )
  }
}
