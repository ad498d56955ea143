import type { Command } from 'commander'
import { request } from './client.ts'
import { addExamples, type Cli } from './command.ts'
import { printAnswer, table, timeText, visible } from './output.ts'

interface Org {
  id: string
  slug: string
  name: string
  created_at: string
}

export function addOrgCommands(program: Command, cli: Cli): void {
  const orgs = program.command('orgs').alias('org').description('organizations, to which everything else belongs')
  addExamples(orgs, 'berth orgs create acme', 'berth orgs list')

  const create = orgs
    .command('create')
    .description('create an organization (needs a root token)')
    .argument('<slug>', 'lowercase letters, digits and dashes; unique')
    .option('--name <name>', 'what people call it; the slug when omitted')
    .action((slug: string, options: { name?: string }) => createOrg(cli, slug, options.name))
  addExamples(create, 'berth orgs create acme', 'berth orgs create acme --name "Acme Corporation"')

  const list = orgs
    .command('list')
    .alias('ls')
    .description('list the organizations your token may see')
    .action(() => listOrgs(cli))
  addExamples(list, 'berth orgs list', 'berth orgs list --json')
}

async function createOrg(cli: Cli, slug: string, name: string | undefined): Promise<void> {
  const terminal = cli.terminal()
  const org = await request<Org>(cli.session(), 'POST', '/v1/orgs', { slug, name })
  printAnswer(terminal, org, () => `Created organization ${visible(org.slug)}.`)
}

async function listOrgs(cli: Cli): Promise<void> {
  const terminal = cli.terminal()
  const page = await request<{ organizations: Org[] }>(cli.session(), 'GET', '/v1/orgs')
  const rows = page.organizations.map((org) => [org.slug, org.name, org.id, timeText(org.created_at)])
  printAnswer(terminal, page, () => table(['SLUG', 'NAME', 'ID', 'CREATED'], rows, terminal.colors))
}
