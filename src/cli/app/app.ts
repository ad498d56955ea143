import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import type { App, AppPage, CreatedApp } from '../api-types.ts'
import { encodeSegment, request, requestIfPresent, type Session } from '../client.ts'
import { addExamples, type Cli, defaultOrg, type ProgressCli } from '../command.ts'
import { CommandError } from '../errors.ts'
import { block, confirm, formatCount, printResult, sanitize, table } from '../output.ts'
import { type AppAddresses, findAddresses, ownAddressCommand } from './address.ts'
import { addAppRestart } from './app-restart.ts'

interface CreateOptions {
  org: string
  network?: string
  enableSubdomains?: true
}

interface DestroyOptions {
  force?: true
  yes?: true
}

const maxPageSize = 1000 // the largest page the platform returns
const destroyTimeoutSeconds = 60

export function addAppCommands(program: Command, cli: ProgressCli): void {
  const apps = program.command('apps').alias('app').description('apps, which hold machines')
  addExamples(apps, 'berth apps create demo', 'berth apps list', 'berth apps show demo', 'berth apps destroy demo')
  addCreate(apps, cli)

  const list = apps
    .command('list')
    .alias('ls')
    .description('list the apps of an organization, by name')
    .option('--org <slug>', 'the organization', defaultOrg)
    .action((options: { org: string }) => listApps(cli, options.org))
  addExamples(list, 'berth apps list', 'berth apps list --org acme --json')

  const show = apps
    .command('show')
    .description('show an app')
    .argument('<name>', 'the name of the app')
    .action((name: string) => showApp(cli, name))
  addExamples(show, 'berth apps show demo', 'berth apps show demo --json')

  addAppRestart(apps, cli)

  const destroy = apps
    .command('destroy')
    .description('destroy an app and everything in it, and wait until it is gone')
    .argument('<name>', 'the name of the app')
    .option('--force', 'stop running machines first; without it an app with running machines is not destroyed')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((name: string, options: DestroyOptions) => destroyApp(cli, name, options))
  addExamples(destroy, 'berth apps destroy demo', 'berth apps destroy demo --force --yes')
}

function addCreate(apps: Command, cli: Cli): void {
  const create = apps
    .command('create')
    .description('create an app')
    .argument('<name>', 'lowercase letters, digits and dashes; unique over all organizations')
    .option('--org <slug>', 'the organization it belongs to', defaultOrg)
    .option('--network <name>', 'put it in this private network, separate from other apps of the organization')
    .option('--enable-subdomains', 'also route subdomains of its host name to it')
    .action((name: string, options: CreateOptions) => createApp(cli, name, options))
  addExamples(create, 'berth apps create demo', 'berth apps create shop --org acme --network shop')
}

async function createApp(cli: Cli, name: string, options: CreateOptions): Promise<void> {
  const terminal = cli.terminal()
  const app = await request<CreatedApp>(cli.session(), 'POST', '/v1/apps', {
    app_name: name,
    org_slug: options.org,
    network: options.network,
    enable_subdomains: options.enableSubdomains,
  })
  const organization = `organization ${sanitize(app.organization.slug)}`
  printResult(terminal, app, () => `Created app ${sanitize(app.name)} in ${organization}.`)
}

async function listApps(cli: Cli, org: string): Promise<void> {
  const terminal = cli.terminal()
  const page = await listAllApps(cli.session(), org)
  if (page.apps.length === 0 && !terminal.json) {
    return terminal.note(`No apps in ${sanitize(org)}; "berth apps create <name>" creates one.`)
  }
  const rows = page.apps.map((app) => [app.name, app.status, app.machine_count, app.volume_count, app.network])
  const headers = ['NAME', 'STATUS', 'MACHINES', 'VOLUMES', 'NETWORK']
  printResult(terminal, page, () => table(headers, rows, terminal.colors))
}

/** Fetches all pages and joins them into one. */
async function listAllApps(session: Session, org: string): Promise<AppPage> {
  const apps: AppPage['apps'] = []
  let cursor: string | undefined
  for (;;) {
    const query = new URLSearchParams({ org_slug: org, limit: String(maxPageSize), ...(cursor ? { cursor } : {}) })
    const page = await request<AppPage>(session, 'GET', `/v1/apps?${query}`)
    apps.push(...page.apps)
    cursor = page.next_cursor
    if (!cursor) return { total_apps: page.total_apps, apps }
  }
}

async function showApp(cli: Cli, name: string): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const app = await getApp(session, name)
  if (terminal.json) return printResult(terminal, app, () => '')
  const found = await findAddresses(session, app.name)
  const endpoints = found.endpoints.map((endpoint): [string, string] => ['address', endpoint])
  const pairs: [string, string | number][] = [
    ['name', app.name],
    ['id', app.id],
    ['status', app.status],
    ...describeUrl(app.name, found),
    ...endpoints,
    ['organization', app.organization.slug],
    ['network', app.network],
    ['machines', app.machine_count],
    ['volumes', app.volume_count],
  ]
  printResult(terminal, app, () => block(pairs, terminal.colors))
}

function describeUrl(app: string, { url, isPublic, lacksOwnAddress }: AppAddresses): [string, string][] {
  const own = `plain TCP and UDP ports need an own address; "${ownAddressCommand(app)}" allocates one`
  if (!isPublic) return [['url', 'none; "berth ips allocate-v4 --shared" allocates an address']]
  return [
    ...(url === undefined ? [] : [['url', url] as [string, string]]),
    ...(lacksOwnAddress ? [['address', own] as [string, string]] : []),
  ]
}

async function destroyApp(cli: Cli, name: string, options: DestroyOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const app = await getApp(session, name)
  if (!options.yes) await confirm(terminal, formatDestroyQuestion(app))
  const answer = await request(
    session,
    'DELETE',
    `/v1/apps/${encodeSegment(name)}${options.force ? '?force=true' : ''}`,
  )
  await waitUntilGone(session, app)
  printResult(terminal, answer, () => `Destroyed app ${sanitize(app.name)}.`)
}

function formatDestroyQuestion(app: App): string {
  const held = `${formatCount(app.machine_count, 'machine')} and ${formatCount(app.volume_count, 'volume')}`
  return `Destroy app ${app.name} of organization ${app.organization.slug} with ${held}?`
}

/** Compares ids, because the name is free at once and a new app may already use it. */
async function waitUntilGone(session: Session, app: App): Promise<void> {
  const deadline = Date.now() + destroyTimeoutSeconds * 1000
  for (;;) {
    const found = await requestIfPresent<App>(session, `/v1/apps/${encodeSegment(app.name)}`)
    if (found?.id !== app.id) return
    if (Date.now() > deadline)
      throw new CommandError(`app ${app.name} still exists after ${destroyTimeoutSeconds} seconds`)
    await delay(200)
  }
}

function getApp(session: Session, name: string): Promise<App> {
  return request<App>(session, 'GET', `/v1/apps/${encodeSegment(name)}`)
}
