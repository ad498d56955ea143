import { Argument, type Command, Option } from 'commander'
import type { PostgresCredentials, PostgresUser } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { block, confirm, printResult, sanitize, table } from '../output.ts'
import { clusterArguments, type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

const roles = ['schema_admin', 'writer', 'reader']

export function addUserCommands(postgres: Command, cli: Cli): void {
  const users = postgres
    .command('users')
    .alias('user')
    .description('users of a cluster; a schema_admin may change the schema, a writer the data, a reader only reads')
  addExamples(
    users,
    'berth postgres users create shop reporting --role reader',
    'berth postgres users credentials shop reporting',
  )
  addUserLists(users, cli)
  addUserChanges(users, cli)
  addPasswordCommands(users, cli)
}

function addUserLists(users: Command, cli: Cli): void {
  const list = withClusterArgument(users.command('list').alias('ls'))
    .description('list the users of a cluster')
    .action((nameOrId: string, options: OrgOptions) => listUsers(cli, nameOrId, options))
  addExamples(list, 'berth postgres users list shop')
}

function addUserChanges(users: Command, cli: Cli): void {
  const create = withUserArgument(users.command('create'))
    .description('create a user; the platform generates the password')
    .addOption(new Option('--role <role>', 'the permissions of the user').choices(roles).makeOptionMandatory())
    .action((nameOrId: string, username: string, options: OrgOptions & { role: string }) => {
      return createUser(cli, nameOrId, username, options)
    })
  addExamples(create, 'berth postgres users create shop reporting --role reader')

  const role = withUserArgument(users.command('role'))
    .description('change the role of a user and end its sessions')
    .addArgument(new Argument('<role>', 'the permissions of the user').choices(roles))
    .action((nameOrId: string, username: string, wanted: string, options: OrgOptions) => {
      return changeRole(cli, nameOrId, username, wanted, options)
    })
  addExamples(role, 'berth postgres users role shop reporting writer')

  const remove = withUserArgument(users.command('delete'))
    .description('delete a user and end its sessions; its objects go to the schema admins')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((nameOrId: string, username: string, options: OrgOptions & { yes?: true }) => {
      return deleteUser(cli, nameOrId, username, options)
    })
  addExamples(remove, 'berth postgres users delete shop reporting')
}

function addPasswordCommands(users: Command, cli: Cli): void {
  const credentials = withUserArgument(users.command('credentials'))
    .description('show the password of a user')
    .action((nameOrId: string, username: string, options: OrgOptions) =>
      showCredentials(cli, nameOrId, username, options),
    )
  addExamples(
    credentials,
    'berth postgres users credentials shop fly-user',
    'berth postgres users credentials shop fly-user --json',
  )

  const rotate = withUserArgument(users.command('rotate'))
    .description('generate a new password for a user and show it')
    .option('--kill-sessions', 'also end the open sessions of the user')
    .action((nameOrId: string, username: string, options: OrgOptions & { killSessions?: true }) => {
      return rotatePassword(cli, nameOrId, username, options)
    })
  addExamples(rotate, 'berth postgres users rotate shop reporting --kill-sessions')
}

function withUserArgument(command: Command): Command {
  return withClusterArgument(command).argument('<user>', 'the name of the user')
}

async function userPath(cli: Cli, nameOrId: string, username: string, options: OrgOptions): Promise<string> {
  return `${await findCluster(cli, nameOrId, options)}/users/${encodeSegment(username)}`
}

async function listUsers(cli: Cli, nameOrId: string, options: OrgOptions): Promise<void> {
  const terminal = cli.terminal()
  const path = await findCluster(cli, nameOrId, options)
  const answer = await request<Data<PostgresUser[]>>(cli.session(), 'GET', `${path}/users`)
  const rows = answer.data.map(({ username, role }) => [username, role])
  printResult(terminal, answer, () => table(['USER', 'ROLE'], rows, terminal.colors))
}

async function createUser(
  cli: Cli,
  nameOrId: string,
  username: string,
  options: OrgOptions & { role: string },
): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const { role } = options
  const answer = await request<Data<PostgresUser>>(cli.session(), 'POST', `${path}/users`, { username, role })
  const command = `berth postgres users credentials ${clusterArguments(`${nameOrId} ${username}`, options.org)}`
  printResult(cli.terminal(), answer, () => {
    return sanitize(`Created user ${username} with the role ${role}. "${command}" shows its password.`)
  })
}

async function changeRole(
  cli: Cli,
  nameOrId: string,
  username: string,
  role: string,
  options: OrgOptions,
): Promise<void> {
  const path = await userPath(cli, nameOrId, username, options)
  const answer = await request(cli.session(), 'PATCH', path, { role })
  printResult(cli.terminal(), answer, () => `User ${sanitize(username)} now has the role ${role}.`)
}

async function deleteUser(
  cli: Cli,
  nameOrId: string,
  username: string,
  options: OrgOptions & { yes?: true },
): Promise<void> {
  const terminal = cli.terminal()
  const path = await userPath(cli, nameOrId, username, options)
  if (!options.yes) await confirm(terminal, `Delete user ${username} of cluster ${nameOrId}?`)
  const answer = await request(cli.session(), 'DELETE', path)
  printResult(terminal, answer, () => `Deleted user ${sanitize(username)}.`)
}

async function showCredentials(cli: Cli, nameOrId: string, username: string, options: OrgOptions): Promise<void> {
  const path = await userPath(cli, nameOrId, username, options)
  printCredentials(cli, await request<Data<PostgresCredentials>>(cli.session(), 'GET', `${path}/credentials`))
}

async function rotatePassword(
  cli: Cli,
  nameOrId: string,
  username: string,
  options: OrgOptions & { killSessions?: true },
): Promise<void> {
  const path = await userPath(cli, nameOrId, username, options)
  const body = { kill_sessions: options.killSessions }
  printCredentials(
    cli,
    await request<Data<PostgresCredentials>>(cli.session(), 'POST', `${path}/rotate_password`, body),
  )
}

function printCredentials(cli: Cli, answer: Data<PostgresCredentials>): void {
  const terminal = cli.terminal()
  const { username, password } = answer.data
  printResult(terminal, answer, () => block(Object.entries({ user: username, password }), terminal.colors))
}
