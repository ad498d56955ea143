import { type Command, Option } from 'commander'
import type { IssuedToken, Token, TokenList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli, defaultOrg } from '../command.ts'
import { parseDurationOption } from '../duration.ts'
import { formatTime, printResult, sanitize, table } from '../output.ts'

interface CreateOptions {
  kind: string
  org?: string
  sandbox?: string
  name?: string
  format?: string
  /** The lifetime in seconds. */
  expires?: number
}

const kinds = ['root', 'org', 'read', 'sandbox']

export function addTokenCommands(program: Command, cli: Cli): void {
  const tokens = program.command('tokens').alias('token').description('API tokens')
  addExamples(tokens, 'berth tokens create --kind org --org acme', 'berth tokens list', 'berth tokens revoke <id>')

  const create = tokens
    .command('create')
    .description(
      'create a token: root has full access, org has full access to one organization, read only reads it, sandbox uses one sandbox',
    )
    .addOption(new Option('--kind <kind>', 'what the token gives access to').choices(kinds).makeOptionMandatory())
    .option('--org <slug>', `the organization of the token; defaults to ${defaultOrg}, except for kind root`)
    .option('--sandbox <name>', 'the sandbox of a token of kind sandbox')
    .option('--name <name>', 'a label to recognize the token in the list')
    .addOption(new Option('--format <format>', 'fm2 is the format that flyctl needs').choices(['berth', 'fm2']))
    .option('--expires <duration>', 'lifetime of the token, such as 12h or 30d', parseDurationOption)
    .action((options: CreateOptions) => createToken(cli, options))
  addExamples(
    create,
    'berth tokens create --kind org --org acme --name ci --expires 30d',
    'export BERTH_TOKEN=$(berth tokens create --kind read)',
    'berth tokens create --kind sandbox --sandbox dev --json',
    'export FLY_API_TOKEN=$(berth tokens create --kind org --format fm2)',
  )

  const list = tokens
    .command('list')
    .alias('ls')
    .description('list tokens, newest first')
    .option('--org <slug>', 'only tokens of this organization')
    .action((options: { org?: string }) => listTokens(cli, options.org))
  addExamples(list, 'berth tokens list', 'berth tokens list --org acme --json')

  const revoke = tokens
    .command('revoke')
    .description('revoke a token; the next request with it fails, and what it has opened is closed')
    .argument('<id>', 'the id of the token, not the token itself')
    .action((id: string) => revokeToken(cli, id))
  addExamples(revoke, 'berth tokens revoke 4k2j9x0q7m1n5b8c')

  const rotate = tokens
    .command('rotate-root')
    .description('replace the root token of the platform; the old one stops working at once')
    .action(() => rotateRootToken(cli))
  addExamples(rotate, 'berth tokens rotate-root')
}

async function createToken(cli: Cli, options: CreateOptions): Promise<void> {
  const terminal = cli.terminal()
  const issued = await request<IssuedToken>(cli.session(), 'POST', '/v1/tokens', {
    kind: options.kind,
    org_slug: options.org ?? (options.kind === 'root' ? undefined : defaultOrg),
    sandbox: options.sandbox,
    name: options.name,
    format: options.format,
    expires_in_seconds: options.expires,
  })
  // Standard output gets only the token, so that $(berth tokens create …) works in scripts.
  if (!terminal.json) terminal.note(`Token ${issued.id}. It is shown only once; save it now.`)
  printResult(terminal, issued, () => issued.token)
}

async function listTokens(cli: Cli, org: string | undefined): Promise<void> {
  const terminal = cli.terminal()
  const query = org === undefined ? '' : `?${new URLSearchParams({ org_slug: org })}`
  const page = await request<TokenList>(cli.session(), 'GET', `/v1/tokens${query}`)
  const rows = page.tokens.map((token) => [
    token.id,
    token.kind,
    token.org_slug,
    token.sandbox,
    token.name,
    formatTime(token.created_at),
    formatTime(token.expires_at),
    tokenState(token, Date.now()),
  ])
  const headers = ['ID', 'KIND', 'ORG', 'SANDBOX', 'NAME', 'CREATED', 'EXPIRES', 'STATE']
  printResult(terminal, page, () => table(headers, rows, terminal.colors))
}

async function revokeToken(cli: Cli, id: string): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request(cli.session(), 'DELETE', `/v1/tokens/${encodeSegment(id)}`)
  printResult(terminal, answer, () => `Revoked token ${sanitize(id)}.`)
}

async function rotateRootToken(cli: Cli): Promise<void> {
  const terminal = cli.terminal()
  const issued = await request<IssuedToken>(cli.session(), 'POST', '/v1/tokens/root/rotate')
  if (!terminal.json)
    terminal.note('The old root token is revoked. The new one is in the file "token" of the home, too.')
  printResult(terminal, issued, () => issued.token)
}

export function tokenState(token: Pick<Token, 'expires_at' | 'revoked_at'>, nowMs: number): string {
  if (token.revoked_at) return 'revoked'
  return token.expires_at && Date.parse(token.expires_at) <= nowMs ? 'expired' : 'active'
}
