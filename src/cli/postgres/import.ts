import { readFileSync } from 'node:fs'
import { type Command, InvalidArgumentError, Option } from 'commander'
import type { PostgresImport } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { request } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { block, type Cell, printResult, sanitize } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { clusterArguments, type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface ImportOptions extends OrgOptions {
  database?: string
  jobs?: number
  live?: boolean
  status?: boolean
  cutover?: boolean
  cancel?: boolean
  wait: boolean
}

export function addImportCommand(postgres: Command, cli: ProgressCli): void {
  const command = withClusterArgument(postgres.command('import'))
    .argument(
      '[url]',
      'postgresql://user:password@host:port/database?sslmode=require, or - to read it from standard input',
    )
    .description('copy a database of another PostgreSQL server into a cluster')
    .option('--database <name>', 'the empty database that the copy replaces; fly-db when omitted')
    .option('--jobs <number>', 'tables to copy at a time; 4 when omitted', parseJobs)
    .option('--live', 'keep the copy in sync by logical replication until --cutover')
    .addOption(
      new Option('--status', 'show the last import').conflicts(['cutover', 'cancel', 'live', 'database', 'jobs']),
    )
    .addOption(
      new Option('--cutover', 'complete a live import, after all writers of the source were stopped').conflicts([
        'cancel',
        'live',
      ]),
    )
    .addOption(new Option('--cancel', 'cancel the import and clean up, also at the source').conflicts('live'))
    .option('--no-wait', 'return without waiting')
    .action((nameOrId: string, url: string | undefined, options: ImportOptions) =>
      runImport(cli, nameOrId, url, options),
    )
  addExamples(
    command,
    'berth postgres import shop postgresql://shop:secret@db.example.com/shop?sslmode=require',
    'berth postgres import shop - --live < url.txt',
    'berth postgres import shop --status',
    'berth postgres import shop --cutover',
  )
}

function parseJobs(text: string): number {
  if (!/^[1-8]$/.test(text)) throw new InvalidArgumentError('Write a number from 1 to 8.')
  return Number(text)
}

async function runImport(
  cli: ProgressCli,
  nameOrId: string,
  url: string | undefined,
  options: ImportOptions,
): Promise<void> {
  const isCommand = options.status || options.cutover || options.cancel
  if (isCommand && url !== undefined) throw new UsageError('write either a URL or one of --status, --cutover, --cancel')
  if (!isCommand && url === undefined) {
    throw new UsageError('write the URL of the source, or one of --status, --cutover, --cancel')
  }
  const path = `${await findCluster(cli, nameOrId, options)}/import`
  const started = await send(cli, path, url, options)
  const shouldWait = options.wait && !options.status
  const answer = shouldWait ? await watch(cli, path, nameOrId, options) : started
  report(cli, answer, nameOrId, options)
}

function send(
  cli: ProgressCli,
  path: string,
  url: string | undefined,
  { status, cutover, cancel, database, jobs, live }: ImportOptions,
): Promise<Data<PostgresImport>> {
  const session = cli.session()
  if (status) return getLast(cli, path)
  if (cutover) return request(session, 'POST', `${path}/cutover`)
  if (cancel) return request(session, 'DELETE', path)
  const source = url === '-' ? readFileSync(0, 'utf8').trim() : url
  return request(session, 'POST', path, { url: source, database, jobs, live })
}

async function getLast(cli: ProgressCli, path: string): Promise<Data<PostgresImport>> {
  const { data } = await request<Data<PostgresImport | null>>(cli.session(), 'GET', path)
  if (data === null) throw new CommandError('nothing was imported into this cluster yet')
  return { data }
}

function isPending({ status }: PostgresImport): boolean {
  return !['live', 'done', 'failed', 'canceled'].includes(status)
}

function watch(cli: ProgressCli, path: string, nameOrId: string, { org }: OrgOptions): Promise<Data<PostgresImport>> {
  return pollUntil(
    startProgress(cli.terminal(), cli.progress),
    () => getLast(cli, path),
    ({ data }) => (isPending(data) ? sanitize(formatProgress(data, cli.progress.isTTY === true)) : undefined),
    `The import continues. Check its progress with: berth postgres import ${clusterArguments(nameOrId, org)} --status`,
  )
}

/** Elsewhere than on a terminal every change is a line, so that only tables count. */
function formatProgress(data: PostgresImport, isLiveLine: boolean): string {
  const { status, progress, tables_done, tables_total, bytes_done, current_table } = data
  if (status !== 'dumping' && status !== 'restoring') return progress ? `${status}: ${progress}` : status
  if (tables_total === null) return status
  const tables = `${status} ${tables_done} of ${tables_total} tables`
  if (!isLiveLine) return tables
  return [tables, formatBytes(bytes_done), ...(current_table === null ? [] : [current_table])].join(', ')
}

function report(cli: ProgressCli, answer: Data<PostgresImport>, nameOrId: string, options: ImportOptions): void {
  const terminal = cli.terminal()
  const { data } = answer
  const problem = options.status || !options.wait ? undefined : findProblem(data, options)
  const clusterArgs = clusterArguments(nameOrId, options.org)
  if (terminal.json || problem === undefined) {
    printResult(terminal, answer, () => formatImport(data, clusterArgs, terminal.colors))
  }
  if (problem !== undefined) throw new CommandError(problem)
}

function findProblem(
  data: PostgresImport,
  { cutover, cancel }: Pick<ImportOptions, 'cutover' | 'cancel'>,
): string | undefined {
  if (cancel) return undefined
  if (data.status === 'failed') return `the import failed: ${data.failure ?? 'for an unknown reason'}`
  if (data.status === 'canceled') return 'the import was canceled'
  if (cutover && data.status === 'live')
    return `the import is still live: ${data.warnings.at(-1) ?? 'the source writes'}`
  return undefined
}

function formatImport(data: PostgresImport, clusterArgs: string, colors: boolean): string {
  const { status, progress, failure, source, database, tables_done, tables_total, lag_bytes, lag_seconds } = data
  const facts: [string, Cell][] = [
    ['status', status],
    ...(progress ? ([['progress', progress]] satisfies [string, Cell][]) : []),
    ...(failure ? ([['failure', failure]] satisfies [string, Cell][]) : []),
    ['source', source],
    ['database', database],
    ['tables', tables_total === null ? null : `${tables_done} of ${tables_total}`],
    ...(status === 'live' && lag_bytes !== null
      ? ([['lag', `${formatBytes(lag_bytes)}, ${(lag_seconds ?? 0).toFixed(1)} s`]] satisfies [string, Cell][])
      : []),
  ]
  const warnings = data.warnings.map((warning) => `Warning: ${sanitize(warning)}`)
  const hint =
    status === 'live'
      ? [`Stop the writers of the source, then run: berth postgres import ${sanitize(clusterArgs)} --cutover`]
      : []
  return [block(facts, colors), ...warnings, ...hint].join('\n')
}
