import type { Command } from 'commander'
import type { PostgresCluster } from '../api-types.ts'
import { bytesText } from '../bytes.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { Misuse } from '../failure.ts'
import { block, type Cell, printAnswer, timeText } from '../output.ts'
import {
  type Data,
  defaultDatabase,
  defaultUser,
  type Endpoint,
  findCluster,
  getPassword,
  type InOrg,
  takesCluster,
  wordsFor,
} from './find.ts'

interface ShowOptions extends InOrg {
  reveal?: true
  user: string
}

const hidden = '***'

export function addShowCommand(postgres: Command, cli: Cli): void {
  const show = takesCluster(postgres.command('show'))
    .description('show a cluster, how it is doing, and its connection strings')
    .option('--reveal', 'show the password in the connection strings')
    .option('--user <name>', 'the user in the connection strings', defaultUser)
    .action((given: string, options: ShowOptions) => showCluster(cli, given, options))
  addExamples(show, 'berth postgres show shop', 'berth postgres show shop --reveal', 'berth postgres show shop --json')
}

async function showCluster(cli: Cli, given: string, options: ShowOptions): Promise<void> {
  const terminal = cli.terminal()
  if (options.reveal && terminal.json) {
    const command = `berth postgres users credentials ${wordsFor(`${given} ${options.user}`, options.org)}`
    throw new Misuse(`--reveal is for people; "${command}" knows --json`)
  }
  const path = await findCluster(cli, given, options)
  const answer = await request<Data<PostgresCluster>>(cli.session(), 'GET', path)
  const password = options.reveal && answer.data.endpoints ? await getPassword(cli, path, given, options) : hidden
  printAnswer(terminal, answer, () => block(describeCluster(answer.data, options.user, password), terminal.colors))
}

function describeCluster(cluster: PostgresCluster, user: string, password: string): [string, Cell][] {
  const link = (endpoint: Endpoint) => connectionString(endpoint, password, user)
  const { health, endpoints, private_endpoints: inside, failure } = cluster
  return [
    ['name', cluster.name],
    ['id', cluster.id],
    ['organization', cluster.organization.slug],
    ['status', cluster.status],
    ...(failure === undefined ? [] : ([['failure', failure]] satisfies [string, Cell][])),
    ['health', health && healthText(health)],
    ['region', cluster.region],
    ['plan', cluster.plan],
    ['PostgreSQL', cluster.pg_major_version],
    ['CPUs', `${cluster.cpus} (${cluster.cpu_kind})`],
    ['memory', bytesText(cluster.memory_mb * 1024 ** 2)],
    ['disk', bytesText(cluster.disk_size_gb * 1024 ** 3)],
    ['storage', storageText(cluster)],
    ['replicas', cluster.replicas],
    ['PostGIS', cluster.postgis_enabled],
    ['pool mode', cluster.pool_mode],
    ['created', timeText(cluster.created_at)],
    ['recovery window', windowText(cluster)],
    ['last drill', drillText(cluster)],
    ['apps', cluster.attached_apps.map(({ name }) => name).join(', ')],
    ['direct', endpoints && link(endpoints.primary.direct)],
    ['pooler', endpoints && link(endpoints.primary.pooler)],
    ...(inside === undefined
      ? []
      : ([
          ['direct for machines', link(inside.direct)],
          ['pooler for machines', link(inside.pooler)],
        ] satisfies [string, Cell][])),
  ]
}

function healthText({ status, reason, since }: NonNullable<PostgresCluster['health']>): string {
  return `${status} since ${timeText(since)}${reason === '' ? '' : `: ${reason}`}`
}

function windowText({ recovery_window: window }: PostgresCluster): Cell {
  return window ? `${timeText(window.earliest)} to ${timeText(window.latest)}` : 'none yet'
}

function drillText({ last_drill: drill }: PostgresCluster): Cell {
  return drill && `${drill.result}, ${timeText(drill.at)}, ${Math.round(drill.seconds)} s`
}

function storageText({ storage_used_bytes: used, storage_provisioned_bytes: provisioned }: PostgresCluster): string {
  if (used === null || provisioned === null) return 'not measured yet'
  const share = provisioned === 0 ? '' : ` (${Math.round((used / provisioned) * 100)} %)`
  return `${bytesText(used)} of ${bytesText(provisioned)} used${share}`
}

export function connectionString(
  { host, port }: Endpoint,
  password: string,
  user: string,
  database = defaultDatabase,
): string {
  const address = host.includes(':') ? `[${host}]` : host
  const secret = password === hidden ? hidden : encodeURIComponent(password)
  return `postgresql://${encodeURIComponent(user)}:${secret}@${address}:${port}/${encodeURIComponent(database)}`
}
