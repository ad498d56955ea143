import type { Command } from 'commander'
import type { PostgresCluster, SecretList } from '../api-types.ts'
import { request, segment } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { Failure } from '../failure.ts'
import { printAnswer, visible } from '../output.ts'
import {
  type Data,
  defaultDatabase,
  defaultUser,
  explainMissingDatabase,
  findCluster,
  getEndpoints,
  getPassword,
  type InOrg,
  takesCluster,
} from './find.ts'
import { connectionString } from './show.ts'

interface AttachOptions extends InOrg {
  variable: string
  user: string
  database: string
  direct?: true
}

export function addAttachCommands(postgres: Command, cli: Cli): void {
  const attach = takesCluster(postgres.command('attach'))
    .description('let an app of the organization use a cluster: where it is becomes a secret of the app')
    .argument('<app>', 'the name of the app')
    .option('--variable <name>', 'the name of the secret', 'DATABASE_URL')
    .option('--user <name>', 'as this user', defaultUser)
    .option('--database <name>', 'to this database', defaultDatabase)
    .option('--direct', 'to the server itself instead of through the pooler')
    .action((given: string, app: string, options: AttachOptions) => attachApp(cli, given, app, options))
  addExamples(attach, 'berth postgres attach shop web', 'berth postgres attach shop web --variable ORDERS_URL --direct')

  const detach = takesCluster(postgres.command('detach'))
    .description(
      'note that an app uses a cluster no longer; the secret that attach set goes, unless it was changed since',
    )
    .argument('<app>', 'the name of the app')
    .action((given: string, app: string, options: InOrg) => detachApp(cli, given, app, options))
  addExamples(detach, 'berth postgres detach shop web')
}

async function attachApp(cli: Cli, given: string, app: string, options: AttachOptions): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, given, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  const outside = getEndpoints(cluster, 'an app can be attached')
  await refuseTaken(cli, app, options.variable)
  const { direct, pooler } = cluster.private_endpoints ?? outside
  const password = await getPassword(cli, path, given, options)
  // A secret that leads to no database would be noticed only by the machines that use it.
  const missing = await explainMissingDatabase(cli, path, given, options)
  if (missing !== undefined) throw new Failure(missing)
  const url = connectionString(options.direct ? direct : pooler, password, options.user, options.database)
  const secret = { name: options.variable, value: url }
  const answer = await request(session, 'POST', `${path}/attachments`, { app_name: app, secret })
  printAnswer(
    cli.terminal(),
    answer,
    () =>
      `Attached app ${visible(app)} to cluster ${visible(given)}. Machines that are made or updated from now on see ${visible(options.variable)}; "berth secrets deploy -a ${visible(app)}" gives it to those that run.`,
  )
}

/** What is there may be the only place that knows another database. */
async function refuseTaken(cli: Cli, app: string, variable: string): Promise<void> {
  if (!(await listSecretNames(cli, app)).includes(variable)) return
  throw new Failure(
    `app ${app} has a secret ${variable} already; remove it first or choose another name with --variable`,
  )
}

async function listSecretNames(cli: Cli, app: string): Promise<string[]> {
  const path = `/v1/apps/${segment(app)}/secrets`
  const { secrets } = await request<SecretList>(cli.session(), 'GET', path)
  return secrets.map(({ name }) => name)
}

async function detachApp(cli: Cli, given: string, app: string, options: InOrg): Promise<void> {
  const path = await findCluster(cli, given, options)
  const before = await listSecretNames(cli, app)
  await request(cli.session(), 'DELETE', `${path}/attachments/${segment(app)}`)
  const after = await listSecretNames(cli, app)
  const removed = before.filter((name) => !after.includes(name))
  printAnswer(cli.terminal(), { data: { removed_secrets: removed } }, () => {
    const says = `Detached app ${visible(app)} from cluster ${visible(given)}`
    if (removed.length === 0) return `${says}. The secrets of the app stay.`
    return `${says}. Machines that are made or updated from now on do not see ${removed.map(visible).join(', ')} any more.`
  })
}
