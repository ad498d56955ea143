import type { Command } from 'commander'
import type { Sandbox, SandboxPage } from '../api-types.ts'
import { request, type Session } from '../client.ts'
import { addExamples } from '../command.ts'
import { formatTime, printResult, sanitize, table } from '../output.ts'
import type { SandboxCli } from './find.ts'

interface ListOptions {
  org?: string
  prefix?: string
  watch?: true
}

interface Change {
  type?: string
  name?: string
  status?: string
  timestamp: string
}

export function addListCommand(sandbox: Command, cli: SandboxCli): void {
  const list = sandbox
    .command('list')
    .alias('ls')
    .description('list sandboxes, by name')
    .option('--org <slug>', 'only sandboxes of this organization; defaults to all that the token may see')
    .option('--prefix <text>', 'only names with this prefix')
    .option('-w, --watch', 'show changes as they happen, until interrupted')
    .action((options: ListOptions) => (options.watch ? watchSandboxes(cli, options) : listSandboxes(cli, options)))
  addExamples(list, 'berth sandbox list', 'berth sandbox ls --org acme --prefix ci-', 'berth sandbox list --watch')
}

async function listSandboxes(cli: SandboxCli, options: ListOptions): Promise<void> {
  const terminal = cli.terminal()
  const page = await listAllSandboxes(cli.session(), options)
  if (page.sprites.length === 0 && !terminal.json) {
    return terminal.note('No sandboxes; "berth sandbox create <name>" creates one.')
  }
  const rows = page.sprites.map((sandbox) => [
    sandbox.name,
    sandbox.status,
    sandbox.organization,
    sandbox.url_settings.auth === 'public' ? 'public' : 'private',
    sandbox.labels.join(', '),
    formatTime(sandbox.created_at),
    sandbox.url,
  ])
  const headers = ['NAME', 'STATUS', 'ORG', 'ACCESS', 'LABELS', 'CREATED', 'URL']
  printResult(terminal, page, () => table(headers, rows, terminal.colors))
}

/** Fetches all pages and joins them into one. */
async function listAllSandboxes(session: Session, options: ListOptions): Promise<SandboxPage> {
  const sprites: Sandbox[] = []
  for (let token: string | null = null; ; ) {
    const page: SandboxPage = await request(session, 'GET', listPath(options, token))
    sprites.push(...page.sprites)
    token = page.next_continuation_token
    if (token === null) return { ...page, sprites }
  }
}

function listPath({ org, prefix }: ListOptions, token: string | null = null): string {
  const query = new URLSearchParams({
    ...(org === undefined ? {} : { org_slug: org }),
    ...(prefix === undefined ? {} : { prefix }),
    ...(token === null ? {} : { continuation_token: token }),
  })
  return query.size === 0 ? '/v1/sandboxes' : `/v1/sandboxes?${query}`
}

async function watchSandboxes(cli: SandboxCli, options: ListOptions): Promise<void> {
  const terminal = cli.terminal()
  const { readEvents } = await import('../stream.ts')
  for await (const change of readEvents<Change>(cli.session(), { method: 'GET', path: listPath(options) })) {
    if (terminal.json) terminal.print(JSON.stringify(change))
    else if (change.name !== undefined) terminal.print(changeText(change))
  }
}

function changeText({ timestamp, name = '', status = '' }: Change): string {
  return sanitize(`${formatTime(timestamp)}  ${status.padEnd(8)}  ${name}`)
}
