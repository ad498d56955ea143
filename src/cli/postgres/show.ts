import type { Command } from 'commander'
import type { PostgresCluster } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { UsageError } from '../errors.ts'
import { block, type Cell, formatTime, printResult } from '../output.ts'
import {
  clusterArguments,
  type Data,
  defaultDatabase,
  defaultUser,
  type Endpoint,
  findCluster,
  getPassword,
  type OrgOptions,
  withClusterArgument,
} from './find.ts'
import { upgradeText, versionText } from './upgrade.ts'

interface ShowOptions extends OrgOptions {
  reveal?: true
  user: string
}

const hiddenPassword = '***'

export function addShowCommand(postgres: Command, cli: Cli): void {
  const show = withClusterArgument(postgres.command('show'))
    .description('show a cluster, its health and its connection strings')
    .option('--reveal', 'show the password in the connection strings')
    .option('--user <name>', 'the user in the connection strings', defaultUser)
    .action((nameOrId: string, options: ShowOptions) => showCluster(cli, nameOrId, options))
  addExamples(show, 'berth postgres show shop', 'berth postgres show shop --reveal', 'berth postgres show shop --json')
}

async function showCluster(cli: Cli, nameOrId: string, options: ShowOptions): Promise<void> {
  const terminal = cli.terminal()
  if (options.reveal && terminal.json) {
    const command = `berth postgres users credentials ${clusterArguments(`${nameOrId} ${options.user}`, options.org)}`
    throw new UsageError(`--reveal cannot be used with --json; use "${command}" instead`)
  }
  const path = await findCluster(cli, nameOrId, options)
  const answer = await request<Data<PostgresCluster>>(cli.session(), 'GET', path)
  const password =
    options.reveal && answer.data.endpoints ? await getPassword(cli, path, nameOrId, options) : hiddenPassword
  printResult(terminal, answer, () => block(describeCluster(answer.data, options.user, password), terminal.colors))
}

function describeCluster(cluster: PostgresCluster, user: string, password: string): [string, Cell][] {
  const urlFor = (endpoint: Endpoint) => connectionString(endpoint, password, user)
  const { health, endpoints, private_endpoints: privateEndpoints, failure } = cluster
  return [
    ['name', cluster.name],
    ['id', cluster.id],
    ['organization', cluster.organization.slug],
    ['status', cluster.status],
    ...(failure === undefined ? [] : ([['failure', failure]] satisfies [string, Cell][])),
    ['health', health && healthText(health)],
    ['region', cluster.region],
    ['plan', cluster.plan],
    ['PostgreSQL', versionText(cluster)],
    ...(cluster.upgrade ? ([['upgrade', upgradeText(cluster.upgrade)]] satisfies [string, Cell][]) : []),
    ['CPUs', `${cluster.cpus} (${cluster.cpu_kind})`],
    ['memory', formatBytes(cluster.memory_mb * 1024 ** 2)],
    ['disk', formatBytes(cluster.disk_size_gb * 1024 ** 3)],
    ['storage', storageText(cluster)],
    ['replicas', cluster.replicas],
    ['PostGIS', cluster.postgis_enabled],
    ['pool mode', cluster.pool_mode],
    ['retention', `${cluster.retention_days} ${cluster.retention_days === 1 ? 'day' : 'days'}`],
    ['maintenance', cluster.maintenance_window && `${cluster.maintenance_window} UTC`],
    ['created', formatTime(cluster.created_at)],
    ['recovery window', windowText(cluster)],
    ['last drill', drillText(cluster)],
    ['apps', cluster.attached_apps.map(({ name }) => name).join(', ')],
    ['direct', endpoints && urlFor(endpoints.primary.direct)],
    ['pooler', endpoints && urlFor(endpoints.primary.pooler)],
    ...(privateEndpoints === undefined
      ? []
      : ([
          ['direct for machines', urlFor(privateEndpoints.direct)],
          ['pooler for machines', urlFor(privateEndpoints.pooler)],
        ] satisfies [string, Cell][])),
  ]
}

function healthText({ status, reason, since }: NonNullable<PostgresCluster['health']>): string {
  return `${status} since ${formatTime(since)}${reason === '' ? '' : `: ${reason}`}`
}

function windowText({ recovery_window: window }: PostgresCluster): Cell {
  return window ? `${formatTime(window.earliest)} to ${formatTime(window.latest)}` : 'none yet'
}

function drillText({ last_drill: drill }: PostgresCluster): Cell {
  return drill && `${drill.result}, ${formatTime(drill.at)}, ${Math.round(drill.seconds)} s`
}

function storageText({ storage_used_bytes: used, storage_provisioned_bytes: provisioned }: PostgresCluster): string {
  if (used === null || provisioned === null) return 'not measured yet'
  const share = provisioned === 0 ? '' : ` (${Math.round((used / provisioned) * 100)} %)`
  return `${formatBytes(used)} of ${formatBytes(provisioned)} used${share}`
}

export function connectionString(
  { host, port }: Endpoint,
  password: string,
  user: string,
  database = defaultDatabase,
): string {
  const address = host.includes(':') ? `[${host}]` : host
  const secret = password === hiddenPassword ? hiddenPassword : encodeURIComponent(password)
  return `postgresql://${encodeURIComponent(user)}:${secret}@${address}:${port}/${encodeURIComponent(database)}`
}
