import { type Command, Option } from 'commander'
import type { PostgresAuthority, PostgresCluster } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { printResult, sanitize } from '../output.ts'
import {
  type Data,
  defaultDatabase,
  defaultUser,
  type Endpoint,
  findCluster,
  getEndpoints,
  getPassword,
  missingDatabaseMessage,
  type OrgOptions,
  withClusterArgument,
} from './find.ts'

export interface PsqlTarget extends Endpoint {
  user: string
  password: string
  database: string
}

/** Runs psql on the terminal and returns its exit code, which also becomes that of this process. */
export type RunPsql = (target: PsqlTarget, args: string[]) => Promise<number>

/** The exit code of psql when it cannot connect or loses its connection. */
const connectionLostCode = 2

interface ConnectOptions extends OrgOptions {
  pooler?: true
  user: string
  database: string
}

export function addConnectCommands(postgres: Command, cli: Cli & { runPsql: RunPsql }): void {
  const connect = withClusterArgument(postgres.command('connect'))
    .description('open psql on a cluster')
    .argument('[arguments...]', 'arguments for psql; write -- before them')
    .addOption(new Option('--pooler', 'connect through the pooler').conflicts('direct'))
    .option('--direct', 'connect to the server directly; this is the default')
    .option('--user <name>', 'the database user', defaultUser)
    .option('--database <name>', 'the database', defaultDatabase)
    .action((nameOrId: string, args: string[], options: ConnectOptions) => connectTo(cli, nameOrId, args, options))
  addExamples(
    connect,
    'berth postgres connect shop',
    'berth postgres connect shop --pooler --user reporting',
    "berth postgres connect shop -- -c 'select now()'",
    'berth postgres connect shop -- --file schema.sql',
  )

  const ca = postgres
    .command('ca')
    .description('print the CA certificate of the clusters as PEM')
    .action(() => printAuthority(cli))
  addExamples(ca, 'berth postgres ca > berth-ca.pem', 'PGSSLMODE=verify-full PGSSLROOTCERT=berth-ca.pem psql …')
}

async function connectTo(
  cli: Cli & { runPsql: RunPsql },
  nameOrId: string,
  args: string[],
  options: ConnectOptions,
): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const { data: cluster } = await request<Data<PostgresCluster>>(cli.session(), 'GET', path)
  const { direct, pooler } = getEndpoints(cluster, 'it accepts connections')
  const password = await getPassword(cli, path, nameOrId, options)
  const { user, database } = options
  const code = await cli.runPsql({ ...(options.pooler ? pooler : direct), user, password, database }, args)
  if (code !== connectionLostCode) return
  // The pooler reports a missing database as a failed login. When the cluster is down this check fails, too.
  const missing = await missingDatabaseMessage(cli, path, nameOrId, options).catch(() => undefined)
  if (missing !== undefined) cli.terminal().note(sanitize(missing))
}

async function printAuthority(cli: Cli): Promise<void> {
  const answer = await request<Data<PostgresAuthority>>(cli.session(), 'GET', '/v1/postgres/ca')
  printResult(cli.terminal(), answer, () => answer.data.certificate.trimEnd())
}
