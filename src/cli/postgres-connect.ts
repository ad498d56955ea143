import { type Command, Option } from 'commander'
import { request } from './client.ts'
import { addExamples, type Cli } from './command.ts'
import { Failure } from './failure.ts'
import { printAnswer } from './output.ts'
import {
  type Cluster,
  type Data,
  defaultDatabase,
  defaultUser,
  type Endpoint,
  findCluster,
  getPassword,
  type InOrg,
  takesCluster,
} from './postgres-find.ts'

export interface PsqlTarget extends Endpoint {
  user: string
  password: string
  database: string
}

/** Hands the terminal to psql, and this process its exit code when it ends. */
export type RunPsql = (target: PsqlTarget, args: string[]) => Promise<void>

interface ConnectOptions extends InOrg {
  pooler?: true
  user: string
  database: string
}

export function addConnectCommands(postgres: Command, cli: Cli & { runPsql: RunPsql }): void {
  const connect = takesCluster(postgres.command('connect'))
    .description('open psql on a cluster')
    .argument('[arguments...]', 'for psql; write -- before them')
    .addOption(new Option('--pooler', 'through the pooler').conflicts('direct'))
    .option('--direct', 'to the server itself, which is what happens when neither is said')
    .option('--user <name>', 'as this user', defaultUser)
    .option('--database <name>', 'to this database', defaultDatabase)
    .action((given: string, args: string[], options: ConnectOptions) => connectTo(cli, given, args, options))
  addExamples(
    connect,
    'berth postgres connect shop',
    'berth postgres connect shop --pooler --user reporting',
    "berth postgres connect shop -- -c 'select now()'",
    'berth postgres connect shop -- --file schema.sql',
  )

  const ca = postgres
    .command('ca')
    .description('print the certificate with which clients verify clusters, as PEM')
    .action(() => printAuthority(cli))
  addExamples(ca, 'berth postgres ca > berth-ca.pem', 'PGSSLMODE=verify-full PGSSLROOTCERT=berth-ca.pem psql …')
}

async function connectTo(
  cli: Cli & { runPsql: RunPsql },
  given: string,
  args: string[],
  { user, database, ...options }: ConnectOptions,
): Promise<void> {
  const path = await findCluster(cli, given, options)
  const { data: cluster } = await request<Data<Cluster>>(cli.session(), 'GET', path)
  if (!cluster.endpoints) {
    throw new Failure(`cluster ${cluster.name} is ${cluster.status}; one can connect to it once it is ready`)
  }
  const { direct, pooler } = cluster.endpoints.primary
  const password = await getPassword(cli, path, given, user)
  await cli.runPsql({ ...(options.pooler ? pooler : direct), user, password, database }, args)
}

async function printAuthority(cli: Cli): Promise<void> {
  const answer = await request<Data<{ certificate: string }>>(cli.session(), 'GET', '/v1/postgres/ca')
  printAnswer(cli.terminal(), answer, () => answer.data.certificate.trimEnd())
}
