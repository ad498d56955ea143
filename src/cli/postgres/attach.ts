import type { Command } from 'commander'
import type { PostgresCluster, SecretList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { CommandError } from '../errors.ts'
import { printResult, sanitize } from '../output.ts'
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
    .description('connect an app to a cluster: the connection string becomes a secret of the app')
    .argument('<app>', 'the name of the app')
    .option('--variable <name>', 'the name of the secret', 'DATABASE_URL')
    .option('--user <name>', 'the database user', defaultUser)
    .option('--database <name>', 'the database', defaultDatabase)
    .option('--direct', 'connect to the server directly instead of through the pooler')
    .action((nameOrId: string, app: string, options: AttachOptions) => attachApp(cli, nameOrId, app, options))
  addExamples(attach, 'berth postgres attach shop web', 'berth postgres attach shop web --variable ORDERS_URL --direct')

  const detach = withClusterArgument(postgres.command('detach'))
    .description('disconnect an app from a cluster; the secret that attach set is removed unless it was changed since')
    .argument('<app>', 'the name of the app')
    .action((nameOrId: string, app: string, options: OrgOptions) => detachApp(cli, nameOrId, app, options))
  addExamples(detach, 'berth postgres detach shop web')
}

async function attachApp(cli: Cli, nameOrId: string, app: string, options: AttachOptions): Promise<void> {
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
  const endpoints = getEndpoints(cluster, 'apps can be attached')
  await rejectExistingSecret(cli, app, options.variable)
  const { direct, pooler } = cluster.private_endpoints ?? endpoints
  const password = await getPassword(cli, path, nameOrId, options)
  // Without this check a missing database would only show up as connection errors in the machines.
  const missing = await missingDatabaseMessage(cli, path, nameOrId, options)
  if (missing !== undefined) throw new CommandError(missing)
  const url = connectionString(options.direct ? direct : pooler, password, options.user, options.database)
  const secret = { name: options.variable, value: url }
  const answer = await request(session, 'POST', `${path}/attachments`, { app_name: app, secret })
  printResult(
    cli.terminal(),
    answer,
    () =>
      `Attached app ${sanitize(app)} to cluster ${sanitize(nameOrId)}. Machines created or updated from now on see ${sanitize(options.variable)}; "berth secrets deploy -a ${sanitize(app)}" updates those that run.`,
  )
}

/** Does not overwrite a secret, because it may hold the only copy of other credentials. */
async function rejectExistingSecret(cli: Cli, app: string, variable: string): Promise<void> {
  if (!(await listSecretNames(cli, app)).includes(variable)) return
  throw new CommandError(
    `app ${app} already has a secret ${variable}; remove it first or choose another name with --variable`,
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
  printResult(cli.terminal(), { data: { removed_secrets: removed } }, () => {
    const sentence = `Detached app ${sanitize(app)} from cluster ${sanitize(nameOrId)}`
    if (removed.length === 0) return `${sentence}. No secret of the app was removed.`
    return `${sentence}. Machines created or updated from now on no longer see ${removed.map(sanitize).join(', ')}.`
  })
}
