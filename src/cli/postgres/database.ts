import type { Command } from 'commander'
import type { PostgresDatabase, PostgresExtension } from '../api-types.ts'
import { request, segment } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { confirm, printAnswer, table, visible } from '../output.ts'
import { type Data, defaultDatabase, findCluster, type InOrg, takesCluster } from './find.ts'

interface InDatabase extends InOrg {
  database: string
}

interface EnableOptions extends InDatabase {
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
  const list = takesCluster(databases.command('list').alias('ls'))
    .description('list the databases of a cluster')
    .action((given: string, options: InOrg) => listDatabases(cli, given, options))
  addExamples(list, 'berth postgres databases list shop')

  const create = takesCluster(databases.command('create'))
    .description('create a database')
    .argument('<database>', 'the name of the database')
    .action((given: string, name: string, options: InOrg) => createDatabase(cli, given, name, options))
  addExamples(create, 'berth postgres databases create shop orders')

  const drop = takesCluster(databases.command('drop'))
    .description('drop a database with everything in it; sessions in it end')
    .argument('<database>', 'the name of the database')
    .option('-y, --yes', 'do not ask')
    .action((given: string, name: string, options: InOrg & { yes?: true }) => dropDatabase(cli, given, name, options))
  addExamples(drop, 'berth postgres databases drop shop orders')
}

async function listDatabases(cli: Cli, given: string, options: InOrg): Promise<void> {
  const terminal = cli.terminal()
  const path = await findCluster(cli, given, options)
  const answer = await request<Data<PostgresDatabase[]>>(cli.session(), 'GET', `${path}/databases`)
  const rows = answer.data.map(({ name }) => [name])
  printAnswer(terminal, answer, () => table(['DATABASE'], rows, terminal.colors))
}

async function createDatabase(cli: Cli, given: string, name: string, options: InOrg): Promise<void> {
  const path = await findCluster(cli, given, options)
  const answer = await request(cli.session(), 'POST', `${path}/databases`, { name })
  printAnswer(cli.terminal(), answer, () => `Created database ${visible(name)}.`)
}

async function dropDatabase(cli: Cli, given: string, name: string, options: InOrg & { yes?: true }): Promise<void> {
  const terminal = cli.terminal()
  const path = `${await findCluster(cli, given, options)}/databases/${segment(name)}`
  if (!options.yes) await confirm(terminal, `Drop database ${name} of cluster ${given} with all its data?`)
  const answer = await request(cli.session(), 'DELETE', path)
  printAnswer(terminal, answer, () => `Dropped database ${visible(name)}.`)
}

function addExtensions(extensions: Command, cli: Cli): void {
  const list = inDatabase(takesCluster(extensions.command('list').alias('ls')))
    .description('list the extensions that a database has or can have')
    .action((given: string, options: InDatabase) => listExtensions(cli, given, options))
  addExamples(list, 'berth postgres extensions list shop', 'berth postgres extensions list shop --database orders')

  const enable = inDatabase(takesCluster(extensions.command('enable')))
    .description('enable an extension, with those it needs')
    .argument('<extension>', 'the name of the extension')
    .option('--schema <name>', 'where its objects go')
    .option('--create-schema', 'create the schema if it is not there')
    .action((given: string, name: string, options: EnableOptions) => enableExtension(cli, given, name, options))
  addExamples(
    enable,
    'berth postgres extensions enable shop pg_trgm',
    'berth postgres extensions enable shop hstore --schema tools --create-schema',
  )

  const disable = inDatabase(takesCluster(extensions.command('disable')))
    .description('disable an extension')
    .argument('<extension>', 'the name of the extension')
    .option('--force', 'also remove what depends on it, such as columns of its types')
    .action((given: string, name: string, options: InDatabase & { force?: true }) => {
      return disableExtension(cli, given, name, options)
    })
  addExamples(disable, 'berth postgres extensions disable shop pg_trgm')
}

function inDatabase(command: Command): Command {
  return command.option('--database <name>', 'the database', defaultDatabase)
}

async function findExtensions(cli: Cli, given: string, options: InDatabase): Promise<string> {
  return `${await findCluster(cli, given, options)}/databases/${segment(options.database)}/extensions`
}

async function listExtensions(cli: Cli, given: string, options: InDatabase): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<Data<PostgresExtension[]>>(
    cli.session(),
    'GET',
    await findExtensions(cli, given, options),
  )
  const rows = answer.data.map(({ name, default_version, installed, description }) => [
    name,
    default_version,
    installed?.version,
    installed?.schema,
    description,
  ])
  const headers = ['EXTENSION', 'AVAILABLE', 'ENABLED', 'SCHEMA', 'DESCRIPTION']
  printAnswer(terminal, answer, () => table(headers, rows, terminal.colors))
}

async function enableExtension(cli: Cli, given: string, name: string, options: EnableOptions): Promise<void> {
  const { schema, createSchema } = options
  const body = { name, schema, create_schema: createSchema }
  const answer = await request(cli.session(), 'POST', await findExtensions(cli, given, options), body)
  printAnswer(cli.terminal(), answer, () => `Enabled ${visible(name)} in database ${visible(options.database)}.`)
}

async function disableExtension(
  cli: Cli,
  given: string,
  name: string,
  options: InDatabase & { force?: true },
): Promise<void> {
  const path = `${await findExtensions(cli, given, options)}/${segment(name)}${options.force ? '?force=true' : ''}`
  const answer = await request(cli.session(), 'DELETE', path)
  printAnswer(cli.terminal(), answer, () => `Disabled ${visible(name)} in database ${visible(options.database)}.`)
}
