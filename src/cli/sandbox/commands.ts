import { type Command, InvalidArgumentError, Option } from 'commander'
import type { Sandbox } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples } from '../command.ts'
import { collect, parseWholeNumber } from '../option.ts'
import { block, type Cell, confirm, formatTime, printResult, sanitize } from '../output.ts'
import { addBaseImageCommand } from './base-image.ts'
import { addCheckpointCommands } from './checkpoint.ts'
import { addConsoleCommands } from './console.ts'
import { addExecCommand } from './exec.ts'
import { addFileCommands } from './file.ts'
import { parseVariables, type SandboxCli, sandboxPath, withSandboxArgument } from './find.ts'
import { addListCommand } from './list.ts'
import { addPolicyCommands } from './policy.ts'
import { addProxyCommand } from './proxy.ts'
import { addServiceCommands } from './service.ts'

interface CreateOptions {
  org?: string
  memory?: number
  cpus?: number
  storage?: number
  image?: string
  label?: string[]
  env?: string[]
  public?: true
}

interface UrlOptions {
  public?: true
  private?: true
}

export function addSandboxCommands(program: Command, cli: SandboxCli): void {
  const sandbox = program
    .command('sandbox')
    .alias('sandboxes')
    .description('sandboxes: isolated environments for programs you do not trust')
  addExamples(
    sandbox,
    'berth sandbox create demo',
    'berth sandbox exec demo -- uname -a',
    'berth sandbox console demo',
    'berth sandbox services put demo web --http-port 8080 -- python3 -m http.server 8080',
    'berth sandbox checkpoint demo -m "before the upgrade"',
  )
  addCreate(sandbox, cli)
  addBaseImageCommand(sandbox, cli)
  addListCommand(sandbox, cli)
  addShow(sandbox, cli)
  addUrl(sandbox, cli)
  addExecCommand(sandbox, cli)
  addConsoleCommands(sandbox, cli)
  addServiceCommands(sandbox, cli)
  addFileCommands(sandbox, cli)
  addProxyCommand(sandbox, cli)
  addCheckpointCommands(sandbox, cli)
  addPolicyCommands(sandbox, cli)
  addEndCommands(sandbox, cli)
}

function addCreate(sandbox: Command, cli: SandboxCli): void {
  const create = sandbox
    .command('create')
    .description('create a sandbox; it starts on first use')
    .argument(
      '<name>',
      'lowercase letters, digits and dashes; unique across all organizations, because it is part of the URL',
    )
    .option('--org <slug>', 'the organization it belongs to; defaults to that of the token, or else personal')
    .option('--memory <megabytes>', 'memory limit; 2048 when omitted', parseWholeNumber)
    .option('--cpus <number>', 'CPU limit, such as 0.5; 2 when omitted', parseNumber)
    .option('--storage <gigabytes>', 'storage limit; 10 when omitted', parseWholeNumber)
    .option(
      '--image <reference>',
      'an OCI image for its root file system, such as debian:12; defaults to the programs of the host',
    )
    .option('--label <word>', 'a label; may be given several times', collect)
    .option('--env <NAME=value>', 'an environment variable for all its programs; may be given several times', collect)
    .option('--public', 'let anyone open its URL without a token')
    .action((name: string, options: CreateOptions) => createSandbox(cli, name, options))
  addExamples(
    create,
    'berth sandbox create demo',
    'berth sandbox create demo --memory 512 --cpus 0.5 --storage 2 --env MODE=test',
    'berth sandbox create lab --image debian:12',
    'berth sandbox create site --org acme --label web --public',
  )
}

/** Accepts any decimal number. The platform decides which ones are allowed. */
function parseNumber(text: string): number {
  if (!/^\d{1,9}(\.\d{1,9})?$/.test(text)) throw new InvalidArgumentError('Write a number such as 2 or 0.5.')
  return Number(text)
}

async function createSandbox(cli: SandboxCli, name: string, options: CreateOptions): Promise<void> {
  const terminal = cli.terminal()
  const sandbox = await request<Sandbox>(cli.session(), 'POST', '/v1/sandboxes', {
    name,
    org_slug: options.org,
    image: options.image,
    config: { ram_mb: options.memory, cpus: options.cpus, storage_gb: options.storage },
    labels: options.label,
    environment: parseVariables(options.env),
    url_settings: options.public && { auth: 'public' },
  })
  printResult(terminal, sandbox, () => formatCreated(sandbox))
  if (sandbox.isolation.gap && !terminal.json) terminal.note(`warning: ${sanitize(sandbox.isolation.gap)}`)
}

function formatCreated({ name, url, organization }: Sandbox): string {
  return [
    `Created sandbox ${sanitize(name)} in organization ${sanitize(organization)}.`,
    '',
    `Open a shell:   berth sandbox console ${sanitize(name)}`,
    `Run a command:  berth sandbox exec ${sanitize(name)} -- uname -a`,
    `Its URL:        ${sanitize(url)}`,
  ].join('\n')
}

function addShow(sandbox: Command, cli: SandboxCli): void {
  const show = withSandboxArgument(sandbox.command('show'))
    .description('show a sandbox')
    .action((name: string) => showSandbox(cli, name))
  addExamples(show, 'berth sandbox show demo', 'berth sandbox show demo --json')
}

async function showSandbox(cli: SandboxCli, name: string): Promise<void> {
  const terminal = cli.terminal()
  const sandbox = await request<Sandbox>(cli.session(), 'GET', sandboxPath(name))
  printResult(terminal, sandbox, () => block(describeSandbox(sandbox), terminal.colors))
}

function describeSandbox(sandbox: Sandbox): [string, Cell][] {
  const { config, isolation, environment } = sandbox
  const variables = Object.entries(environment).map(([name, value]) => `${name}=${value}`)
  return [
    ['name', sandbox.name],
    ['id', sandbox.id],
    ['status', [sandbox.status, sandbox.problem].filter(Boolean).join(': ')],
    ['organization', sandbox.organization],
    ['url', sandbox.url],
    ['access', describeAccess(sandbox)],
    ['memory', `${config.ram_mb} MB`],
    ['processors', config.cpus],
    ['storage', `${config.storage_gb} GB${sandbox.storage.enforced ? '' : ' (not enforced by this file system)'}`],
    ...imageCells(sandbox),
    ['labels', sandbox.labels.join(', ')],
    ['variables', variables.join(' ')],
    ['isolation', isolation.gap ? `${isolation.kind}: ${isolation.gap}` : isolation.kind],
    ['network', isolation.network],
    ['created', formatTime(sandbox.created_at)],
    ['last used', formatTime(sandbox.last_running_at ?? null)],
  ]
}

function imageCells({ image }: Sandbox): [string, Cell][] {
  if (!image) return []
  const { reference, digest, problem } = image
  return [['image', [reference, digest, problem].filter(Boolean).join(' ')]]
}

function describeAccess({ url_settings: { auth } }: Sandbox): string {
  return auth === 'public' ? 'public' : 'private: requires a token'
}

function addUrl(sandbox: Command, cli: SandboxCli): void {
  const url = withSandboxArgument(sandbox.command('url'))
    .description('show the URL of a sandbox or change who may open it')
    .addOption(new Option('--public', 'let anyone open it').conflicts('private'))
    .option('--private', 'require a token of the platform')
    .action((name: string, options: UrlOptions) => showUrl(cli, name, options))
  addExamples(
    url,
    'berth sandbox url demo',
    'berth sandbox url demo --public',
    'curl -H "Authorization: Bearer $BERTH_TOKEN" "$(berth sandbox url demo)"',
  )
}

/** Prints only the URL to standard output, for scripts. */
async function showUrl(cli: SandboxCli, name: string, options: UrlOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const auth = options.public ? 'public' : options.private ? 'sprite' : undefined
  const sandbox = auth
    ? await request<Sandbox>(session, 'PUT', sandboxPath(name), { url_settings: { auth } })
    : await request<Sandbox>(session, 'GET', sandboxPath(name))
  const { url, url_settings } = sandbox
  printResult(terminal, { url, url_settings }, () => sanitize(url))
  if (!terminal.json) terminal.note(describeAccess(sandbox))
}

function addEndCommands(sandbox: Command, cli: SandboxCli): void {
  const restart = withSandboxArgument(sandbox.command('restart'))
    .description('stop all processes in a sandbox and start its services again; its files are kept')
    .action((name: string) => restartSandbox(cli, name))
  addExamples(restart, 'berth sandbox restart demo')

  const destroy = withSandboxArgument(sandbox.command('destroy'))
    .description('destroy a sandbox with its files and checkpoints')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((name: string, options: { yes?: true }) => destroySandbox(cli, name, options))
  addExamples(destroy, 'berth sandbox destroy demo', 'berth sandbox destroy demo --yes')
}

async function restartSandbox(cli: SandboxCli, name: string): Promise<void> {
  const answer = await request(cli.session(), 'POST', `${sandboxPath(name)}/restart`)
  printResult(cli.terminal(), answer, () => `Restarted sandbox ${sanitize(name)}.`)
}

async function destroySandbox(cli: SandboxCli, name: string, options: { yes?: true }): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const sandbox = await request<Sandbox>(session, 'GET', sandboxPath(name))
  const question = `Destroy sandbox ${sandbox.name} of organization ${sandbox.organization} with everything in it?`
  if (!options.yes) await confirm(terminal, question)
  const answer = await request(session, 'DELETE', sandboxPath(name))
  printResult(terminal, answer, () => `Destroyed sandbox ${sanitize(sandbox.name)}.`)
}
