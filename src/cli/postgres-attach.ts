import type { Command } from 'commander'
import { request, segment } from './client.ts'
import { addExamples, type Cli } from './command.ts'
import { Failure } from './failure.ts'
import { printAnswer, visible } from './output.ts'
import {
  type Cluster,
  type Data,
  defaultDatabase,
  defaultUser,
  findCluster,
  getPassword,
  type InOrg,
  takesCluster,
} from './postgres-find.ts'
import { connectionString } from './postgres-show.ts'

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
    .description('note that an app uses a cluster no longer; the secret of the app stays')
    .argument('<app>', 'the name of the app')
    .action((given: string, app: string, options: InOrg) => detachApp(cli, given, app, options))
  addExamples(detach, 'berth postgres detach shop web')
}

async function attachApp(cli: Cli, given: string, app: string, options: AttachOptions): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, given, options)
  const secrets = `/v1/apps/${segment(app)}/secrets`
  const { data: cluster } = await request<Data<Cluster>>(session, 'GET', path)
  if (!cluster.endpoints) {
    throw new Failure(`cluster ${cluster.name} is ${cluster.status}; an app can be attached once it is ready`)
  }
  await refuseTaken(cli, secrets, app, options.variable)
  const { direct, pooler } = cluster.private_endpoints ?? cluster.endpoints.primary
  const password = await getPassword(cli, path, given, options.user)
  const url = connectionString(options.direct ? direct : pooler, password, options.user, options.database)
  const answer = await request(session, 'POST', `${path}/attachments`, { app_name: app })
  await request(session, 'POST', secrets, { values: { [options.variable]: url } })
  printAnswer(
    cli.terminal(),
    answer,
    () =>
      `Attached app ${visible(app)} to cluster ${visible(given)}. Machines that are made or updated from now on see ${visible(options.variable)}; "berth secrets deploy -a ${visible(app)}" gives it to those that run.`,
  )
}

/** What is there may be the only place that knows another database. */
async function refuseTaken(cli: Cli, secrets: string, app: string, variable: string): Promise<void> {
  const found = await request<{ secrets: { name: string }[] }>(cli.session(), 'GET', secrets)
  if (!found.secrets.some(({ name }) => name === variable)) return
  throw new Failure(
    `app ${app} has a secret ${variable} already; remove it first or choose another name with --variable`,
  )
}

async function detachApp(cli: Cli, given: string, app: string, options: InOrg): Promise<void> {
  const path = await findCluster(cli, given, options)
  const answer = await request(cli.session(), 'DELETE', `${path}/attachments/${segment(app)}`)
  printAnswer(cli.terminal(), answer, () => `Detached app ${visible(app)} from cluster ${visible(given)}.`)
}
