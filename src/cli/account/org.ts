import { type Command, Option } from 'commander'
import type { Organization, OrganizationList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { block, formatTime, printResult, sanitize, table } from '../output.ts'

interface UpdateOptions {
  crossNetworkReplays: 'on' | 'off'
}

export function addOrgCommands(program: Command, cli: Cli): void {
  const orgs = program.command('orgs').alias('org').description('organizations, which own all other resources')
  addExamples(orgs, 'berth orgs create acme', 'berth orgs list')

  const create = orgs
    .command('create')
    .description('create an organization (needs a root token)')
    .argument('<slug>', 'lowercase letters, digits and dashes; unique')
    .option('--name <name>', 'display name; defaults to the slug')
    .action((slug: string, options: { name?: string }) => createOrg(cli, slug, options.name))
  addExamples(create, 'berth orgs create acme', 'berth orgs create acme --name "Acme Corporation"')

  const list = orgs
    .command('list')
    .alias('ls')
    .description('list the organizations your token may see')
    .action(() => listOrgs(cli))
  addExamples(list, 'berth orgs list', 'berth orgs list --json')

  const show = orgs
    .command('show')
    .description('show an organization')
    .argument('<slug>', 'the organization')
    .action((slug: string) => showOrg(cli, slug))
  addExamples(show, 'berth orgs show acme', 'berth orgs show acme --json')

  const update = orgs
    .command('update')
    .description('change the settings of an organization')
    .argument('<slug>', 'the organization')
    .addOption(
      new Option(
        '--cross-network-replays <switch>',
        'whether requests may be replayed to apps in other networks of the organization',
      )
        .choices(['on', 'off'])
        .makeOptionMandatory(),
    )
    .action((slug: string, options: UpdateOptions) => updateOrg(cli, slug, options))
  addExamples(update, 'berth orgs update acme --cross-network-replays off')
}

async function showOrg(cli: Cli, slug: string): Promise<void> {
  const terminal = cli.terminal()
  const org = await request<Organization>(cli.session(), 'GET', `/v1/orgs/${encodeSegment(slug)}`)
  const pairs: [string, string][] = [
    ['slug', org.slug],
    ['name', org.name],
    ['id', org.id],
    ['created', formatTime(org.created_at)],
    ['cross-network replays', formatSwitch(org)],
  ]
  printResult(terminal, org, () => block(pairs, terminal.colors))
}

async function updateOrg(cli: Cli, slug: string, options: UpdateOptions): Promise<void> {
  const body = { cross_network_replays: options.crossNetworkReplays === 'on' }
  const org = await request<Organization>(cli.session(), 'PATCH', `/v1/orgs/${encodeSegment(slug)}`, body)
  printResult(
    cli.terminal(),
    org,
    () => `Replays across the networks of ${sanitize(org.slug)} are ${formatSwitch(org)}.`,
  )
}

function formatSwitch(org: Organization): string {
  return org.cross_network_replays ? 'on' : 'off'
}

async function createOrg(cli: Cli, slug: string, name: string | undefined): Promise<void> {
  const terminal = cli.terminal()
  const org = await request<Organization>(cli.session(), 'POST', '/v1/orgs', { slug, name })
  printResult(terminal, org, () => `Created organization ${sanitize(org.slug)}.`)
}

async function listOrgs(cli: Cli): Promise<void> {
  const terminal = cli.terminal()
  const page = await request<OrganizationList>(cli.session(), 'GET', '/v1/orgs')
  const rows = page.organizations.map((org) => [org.slug, org.name, org.id, formatTime(org.created_at)])
  printResult(terminal, page, () => table(['SLUG', 'NAME', 'ID', 'CREATED'], rows, terminal.colors))
}
