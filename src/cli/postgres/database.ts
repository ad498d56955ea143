import type { Command } from 'commander'
import type { PostgresDatabase, PostgresExtension } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { confirm, printResult, sanitize, table } from '../output.ts'
import { type Data, defaultDatabase, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface DatabaseOptions extends OrgOptions {
  database: string
}

interface EnableOptions extends DatabaseOptions {
  schema?: string
  createSchema?: true
}

export function addDatabaseCommands(postgres: Command, cli: Cli): void {
  const databases = postgres.command('databases').alias('database').description('databases of a cluster')
  addExamples(databases, 'berth postgres databases list shop', 'berth postgres databases create shop orders')
  addDatabases(databases, cli)

  const extensions = postgres.command('extensions').alias('extension').description('extensions of a database')
  addExamples(extensions, 'berth postgres extensions list shop', 'berth postgres extensions enable shop pg_trgm')
  addExtensions(extensions, cli)
}

function addDatabases(databases: Command, cli: Cli): void {
  const list = withClusterArgument(databases.command('list').alias('ls'))
    .description('list the databases of a cluster')
    .action((nameOrId: string, options: OrgOptions) => listDatabases(cli, nameOrId, options))
  addExamples(list, 'berth postgres databases list shop')

  const create = withClusterArgument(databases.command('create'))
    .description('create a database')
    .argument('<database>', 'the name of the database')
    .action((nameOrId: string, name: string, options: OrgOptions) => createDatabase(cli, nameOrId, name, options))
  addExamples(create, 'berth postgres databases create shop orders')

  const drop = withClusterArgument(databases.command('drop'))
    .description('drop a database with all its data and end its sessions')
    .argument('<database>', 'the name of the database')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((nameOrId: string, name: string, options: OrgOptions & { yes?: true }) =>
      dropDatabase(cli, nameOrId, name, options),
    )
  addExamples(drop, 'berth postgres databases drop shop orders')
}

async function listDatabases(cli: Cli, nameOrId: string, options: OrgOptions): Promise<void> {
  const terminal = cli.terminal()
  const path = await findCluster(cli, nameOrId, options)
  const answer = await request<Data<PostgresDatabase[]>>(cli.session(), 'GET', `${path}/databases`)
  const rows = answer.data.map(({ name }) => [name])
  printResult(terminal, answer, () => table(['DATABASE'], rows, terminal.colors))
}

async function createDatabase(cli: Cli, nameOrId: string, name: string, options: OrgOptions): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const answer = await request(cli.session(), 'POST', `${path}/databases`, { name })
  printResult(cli.terminal(), answer, () => `Created database ${sanitize(name)}.`)
}

async function dropDatabase(
  cli: Cli,
  nameOrId: string,
  name: string,
  options: OrgOptions & { yes?: true },
): Promise<void> {
  const terminal = cli.terminal()
  const path = `${await findCluster(cli, nameOrId, options)}/databases/${encodeSegment(name)}`
  if (!options.yes) await confirm(terminal, `Drop database ${name} of cluster ${nameOrId} with all its data?`)
  const answer = await request(cli.session(), 'DELETE', path)
  printResult(terminal, answer, () => `Dropped database ${sanitize(name)}.`)
}

function addExtensions(extensions: Command, cli: Cli): void {
  const list = withDatabaseOption(withClusterArgument(extensions.command('list').alias('ls')))
    .description('list the available and enabled extensions of a database')
    .action((nameOrId: string, options: DatabaseOptions) => listExtensions(cli, nameOrId, options))
  addExamples(list, 'berth postgres extensions list shop', 'berth postgres extensions list shop --database orders')

  const enable = withDatabaseOption(withClusterArgument(extensions.command('enable')))
    .description('enable an extension and the extensions it requires')
    .argument('<extension>', 'the name of the extension')
    .option('--schema <name>', 'the schema for its objects')
    .option('--create-schema', 'create the schema if it does not exist')
    .action((nameOrId: string, name: string, options: EnableOptions) => enableExtension(cli, nameOrId, name, options))
  addExamples(
    enable,
    'berth postgres extensions enable shop pg_trgm',
    'berth postgres extensions enable shop hstore --schema tools --create-schema',
  )

  const disable = withDatabaseOption(withClusterArgument(extensions.command('disable')))
    .description('disable an extension')
    .argument('<extension>', 'the name of the extension')
    .option('--force', 'also drop dependent objects, such as columns of its types')
    .action((nameOrId: string, name: string, options: DatabaseOptions & { force?: true }) => {
      return disableExtension(cli, nameOrId, name, options)
    })
  addExamples(disable, 'berth postgres extensions disable shop pg_trgm')
}

function withDatabaseOption(command: Command): Command {
  return command.option('--database <name>', 'the database', defaultDatabase)
}

async function extensionsPath(cli: Cli, nameOrId: string, options: DatabaseOptions): Promise<string> {
  return `${await findCluster(cli, nameOrId, options)}/databases/${encodeSegment(options.database)}/extensions`
}

async function listExtensions(cli: Cli, nameOrId: string, options: DatabaseOptions): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<Data<PostgresExtension[]>>(
    cli.session(),
    'GET',
    await extensionsPath(cli, nameOrId, options),
  )
  const rows = answer.data.map(({ name, default_version, installed, description }) => [
    name,
    default_version,
    installed?.version,
    installed?.schema,
    description,
  ])
  const headers = ['EXTENSION', 'AVAILABLE', 'ENABLED', 'SCHEMA', 'DESCRIPTION']
  printResult(terminal, answer, () => table(headers, rows, terminal.colors))
}

async function enableExtension(cli: Cli, nameOrId: string, name: string, options: EnableOptions): Promise<void> {
  const { schema, createSchema } = options
  const body = { name, schema, create_schema: createSchema }
  const answer = await request(cli.session(), 'POST', await extensionsPath(cli, nameOrId, options), body)
  printResult(cli.terminal(), answer, () => `Enabled ${sanitize(name)} in database ${sanitize(options.database)}.`)
}

async function disableExtension(
  cli: Cli,
  nameOrId: string,
  name: string,
  options: DatabaseOptions & { force?: true },
): Promise<void> {
  const path = `${await extensionsPath(cli, nameOrId, options)}/${encodeSegment(name)}${options.force ? '?force=true' : ''}`
  const answer = await request(cli.session(), 'DELETE', path)
  printResult(cli.terminal(), answer, () => `Disabled ${sanitize(name)} in database ${sanitize(options.database)}.`)
}
