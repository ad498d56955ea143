import type { Command } from 'commander'
import type { PostgresCluster, SecretList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { Failure } from '../failure.ts'
import { printAnswer, visible } from '../output.ts'
import {
  type Data,
  defaultDatabase,
  defaultUser,
  findCluster,
  getEndpoints,
  getPassword,
  missingDatabaseMessage,
  type OrgOptions,
  withClusterArgument,
} from './find.ts'
import { connectionString } from './show.ts'

interface AttachOptions extends OrgOptions {
  variable: string
  user: string
  database: string
  direct?: true
}

export function addAttachCommands(postgres: Command, cli: Cli): void {
  const attach = withClusterArgument(postgres.command('attach'))
    .description('let an app of the organization use a cluster: where it is becomes a secret of the app')
    .argument('<app>', 'the name of the app')
    .option('--variable <name>', 'the name of the secret', 'DATABASE_URL')
    .option('--user <name>', 'as this user', defaultUser)
    .option('--database <name>', 'to this database', defaultDatabase)
    .option('--direct', 'to the server itself instead of through the pooler')
    .action((nameOrId: string, app: string, options: AttachOptions) => attachApp(cli, nameOrId, app, options))
  addExamples(attach, 'berth postgres attach shop web', 'berth postgres attach shop web --variable ORDERS_URL --direct')

  const detach = withClusterArgument(postgres.command('detach'))
    .description(
      'note that an app uses a cluster no longer; the secret that attach set goes, unless it was changed since',
    )
    .argument('<app>', 'the name of the app')
    .action((nameOrId: string, app: string, options: OrgOptions) => detachApp(cli, nameOrId, app, options))
  addExamples(detach, 'berth postgres detach shop web')
}

async function attachApp(cli: Cli, nameOrId: string, app: string, options: AttachOptions): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  const endpoints = getEndpoints(cluster, 'an app can be attached')
  await rejectExistingSecret(cli, app, options.variable)
  const { direct, pooler } = cluster.private_endpoints ?? endpoints
  const password = await getPassword(cli, path, nameOrId, options)
  // A secret that leads to no database would be noticed only by the machines that use it.
  const missing = await missingDatabaseMessage(cli, path, nameOrId, options)
  if (missing !== undefined) throw new Failure(missing)
  const url = connectionString(options.direct ? direct : pooler, password, options.user, options.database)
  const secret = { name: options.variable, value: url }
  const answer = await request(session, 'POST', `${path}/attachments`, { app_name: app, secret })
  printAnswer(
    cli.terminal(),
    answer,
    () =>
      `Attached app ${visible(app)} to cluster ${visible(nameOrId)}. Machines that are made or updated from now on see ${visible(options.variable)}; "berth secrets deploy -a ${visible(app)}" gives it to those that run.`,
  )
}

/** What is there may be the only place that knows another database. */
async function rejectExistingSecret(cli: Cli, app: string, variable: string): Promise<void> {
  if (!(await listSecretNames(cli, app)).includes(variable)) return
  throw new Failure(
    `app ${app} has a secret ${variable} already; remove it first or choose another name with --variable`,
  )
}

async function listSecretNames(cli: Cli, app: string): Promise<string[]> {
  const path = `/v1/apps/${encodeSegment(app)}/secrets`
  const { secrets } = await request<SecretList>(cli.session(), 'GET', path)
  return secrets.map(({ name }) => name)
}

async function detachApp(cli: Cli, nameOrId: string, app: string, options: OrgOptions): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const before = await listSecretNames(cli, app)
  await request(cli.session(), 'DELETE', `${path}/attachments/${encodeSegment(app)}`)
  const after = await listSecretNames(cli, app)
  const removed = before.filter((name) => !after.includes(name))
  printAnswer(cli.terminal(), { data: { removed_secrets: removed } }, () => {
    const sentence = `Detached app ${visible(app)} from cluster ${visible(nameOrId)}`
    if (removed.length === 0) return `${sentence}. The secrets of the app stay.`
    return `${sentence}. Machines that are made or updated from now on do not see ${removed.map(visible).join(', ')} any more.`
  })
}
