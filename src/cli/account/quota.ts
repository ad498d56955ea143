import type { Command } from 'commander'
import type { Quotas, QuotasList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli, defaultOrg } from '../command.ts'
import { UsageError } from '../errors.ts'
import { printResult, sanitize, type Terminal, table } from '../output.ts'

type Quota = Quotas['quotas'][number]

export function addQuotaCommands(program: Command, cli: Cli): void {
  const quotas = program
    .command('quotas')
    .alias('quota')
    .description('how much each organization may have, and how much it has')
  addExamples(quotas, 'berth quotas list', 'berth quotas show acme', 'berth quotas set acme clusters=50')

  const list = quotas
    .command('list')
    .alias('ls')
    .description('list the quotas in use by all organizations your token may see')
    .option('--all', 'also list quotas of which nothing is used')
    .action((options: { all?: true }) => listQuotas(cli, options.all === true))
  addExamples(list, 'berth quotas list', 'berth quotas list --all', 'berth quotas list --json')

  const show = quotas
    .command('show')
    .description('show limit and usage of each quota of an organization')
    .argument('[org]', `the organization; defaults to ${defaultOrg}`)
    .action((org: string = defaultOrg) => showQuotas(cli, org))
  addExamples(show, 'berth quotas show acme', 'berth quotas show acme --json')

  const set = quotas
    .command('set')
    .description('change quotas of an organization (needs a root token)')
    .argument('<org>', 'the organization')
    .argument('<quota=limit...>', 'a number, unlimited, or default for the default of the platform')
    .action((org: string, changes: string[]) => setQuotas(cli, org, changes))
  addExamples(
    set,
    'berth quotas set acme clusters=50 disk_gb=4000',
    'berth quotas set acme sandboxes=unlimited',
    'berth quotas set acme sandboxes=default',
  )
}

async function listQuotas(cli: Cli, all: boolean): Promise<void> {
  const terminal = cli.terminal()
  const page = await request<QuotasList>(cli.session(), 'GET', '/v1/quotas')
  const rows = page.organizations.flatMap(({ organization, quotas }) =>
    quotas.filter(({ used }) => all || used > 0).map((quota) => [organization, ...rowOf(quota)]),
  )
  printResult(terminal, page, () => table(['ORG', 'QUOTA', 'USED', 'LIMIT', 'DEFAULT'], rows, terminal.colors))
}

async function showQuotas(cli: Cli, org: string): Promise<void> {
  printQuotas(cli.terminal(), await request<Quotas>(cli.session(), 'GET', pathOf(org)))
}

async function setQuotas(cli: Cli, org: string, changes: string[]): Promise<void> {
  const body = Object.fromEntries(changes.map(parseChange))
  printQuotas(cli.terminal(), await request<Quotas>(cli.session(), 'PATCH', pathOf(org), body))
}

function pathOf(org: string): string {
  return `/v1/orgs/${encodeSegment(org)}/quotas`
}

function printQuotas(terminal: Terminal, answer: Quotas): void {
  const rows = answer.quotas.map((quota) => [...rowOf(quota), quota.description])
  printResult(terminal, answer, () => table(['QUOTA', 'USED', 'LIMIT', 'DEFAULT', 'COUNTS'], rows, terminal.colors))
}

function rowOf({ name, used, limit, is_default }: Quota): [string, number, string | number, boolean] {
  return [name, used, limit ?? 'unlimited', is_default]
}

/** Names and limits are checked by the platform, which may be newer than this program. */
export function parseChange(text: string): [string, string | number] {
  const [, name, limit] = /^([a-z_]+)=([a-z]+|\d+)$/.exec(text) ?? []
  if (name === undefined || limit === undefined) {
    throw new UsageError(`"${sanitize(text)}" must be of the form quota=limit, such as clusters=50`)
  }
  return [name, /^\d+$/.test(limit) ? Number(limit) : limit]
}
