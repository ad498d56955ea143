import type { Command } from 'commander'
import { InvalidArgumentError } from 'commander'
import type { PostgresCluster } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { UsageError } from '../errors.ts'
import { printResult, sanitize } from '../output.ts'
import { type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface UpdateOptions extends OrgOptions {
  retention?: Retention
  maintenanceWindow?: string
}

export const retentionHelp = 'how many days back it can be restored, such as 14d'

export type Retention = number | 'default'

export function parseRetention(text: string): Retention {
  if (text === 'default') return text
  const days = /^(\d{1,6})(d|days?)?$/.exec(text)?.[1]
  if (days === undefined) throw new InvalidArgumentError('use a number of days such as 14d, or default')
  return Number(days)
}

export function addUpdateCommand(postgres: Command, cli: Cli): void {
  const update = withClusterArgument(postgres.command('update'))
    .description('change settings of a cluster')
    .option('--retention <days>', `${retentionHelp}; default for the number of the platform`, parseRetention)
    .option(
      '--maintenance-window <time>',
      'day and time in UTC at which newer minor versions are installed, such as "sun 03:00"; none for never',
    )
    .action((nameOrId: string, options: UpdateOptions) => updateCluster(cli, nameOrId, options))
  addExamples(
    update,
    'berth postgres update shop --retention 14d',
    'berth postgres update shop --retention default',
    "berth postgres update shop --maintenance-window 'sun 03:00'",
  )
}

async function updateCluster(cli: Cli, nameOrId: string, options: UpdateOptions): Promise<void> {
  const { retention, maintenanceWindow: window } = options
  const body = {
    ...(retention !== undefined && { retention_days: retention === 'default' ? null : retention }),
    ...(window !== undefined && { maintenance_window: window === 'none' ? null : window.toLowerCase() }),
  }
  if (Object.keys(body).length === 0)
    throw new UsageError('nothing to change; use --retention <days> or --maintenance-window <time>')
  const terminal = cli.terminal()
  const path = await findCluster(cli, nameOrId, options)
  const answer = await request<Data<PostgresCluster>>(cli.session(), 'PATCH', path, body)
  printResult(terminal, answer, () => describeChanges(answer.data, Object.keys(body)))
}

function describeChanges(cluster: PostgresCluster, changed: string[]): string {
  const { retention_days: days, maintenance_window: window } = cluster
  const name = `Cluster ${sanitize(cluster.name)}`
  return [
    ...(changed.includes('retention_days')
      ? [`${name} keeps backups for ${days} ${days === 1 ? 'day' : 'days'}.`]
      : []),
    ...(changed.includes('maintenance_window') ? [`${name} ${describeWindow(window)}.`] : []),
  ].join('\n')
}

function describeWindow(window: string | null): string {
  return window === null ? 'has no maintenance window' : `is upgraded to newer minor versions on ${window} UTC`
}
