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
    .action((nameOrId: string, options: UpdateOptions) => updateCluster(cli, nameOrId, options))
  addExamples(update, 'berth postgres update shop --retention 14d', 'berth postgres update shop --retention default')
}

async function updateCluster(cli: Cli, nameOrId: string, options: UpdateOptions): Promise<void> {
  if (options.retention === undefined) throw new UsageError('nothing to change; use --retention <days>')
  const terminal = cli.terminal()
  const path = await findCluster(cli, nameOrId, options)
  const body = { retention_days: options.retention === 'default' ? null : options.retention }
  const answer = await request<Data<PostgresCluster>>(cli.session(), 'PATCH', path, body)
  const { name, retention_days: days } = answer.data
  printResult(
    terminal,
    answer,
    () => `Cluster ${sanitize(name)} keeps backups for ${days} ${days === 1 ? 'day' : 'days'}.`,
  )
}
