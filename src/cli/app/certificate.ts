import { readFileSync } from 'node:fs'
import type { Command } from 'commander'
import type { CertificateDetail, CertificateList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { UsageError } from '../errors.ts'
import { block, type Cell, formatTime, printResult, sanitize, table } from '../output.ts'
import { type AppOptions, appName, appPath, withAppOption } from './option.ts'

interface AddOptions extends AppOptions {
  cert?: string
  key?: string
}

export function addCertificateCommands(program: Command, cli: Cli): void {
  const certs = program
    .command('certs')
    .alias('certificates')
    .description('custom host names of an app and their certificates')
  addExamples(certs, 'berth certs add shop.example.com -a web', 'berth certs list -a web')

  const add = withAppOption(certs.command('add'))
    .description('route a host name to an app')
    .argument('<hostname>', 'the host name')
    .option('--cert <file>', 'PEM file with the certificate and its chain; by default the local CA issues one')
    .option('--key <file>', 'PEM file with the private key')
    .action((hostname: string, options: AddOptions) => addCertificate(cli, hostname, options))
  addExamples(
    add,
    'berth certs add shop.localhost -a web',
    'berth certs add shop.example.com --cert chain.pem --key key.pem -a web',
  )

  const list = withAppOption(certs.command('list').alias('ls'))
    .description('list the host names of an app')
    .action((options: AppOptions) => listCertificates(cli, options))
  addExamples(list, 'berth certs list -a web')

  const show = withAppOption(certs.command('show'))
    .description('show a host name and its certificates')
    .argument('<hostname>', 'the host name')
    .action((hostname: string, options: AppOptions) => showCertificate(cli, hostname, options))
  addExamples(show, 'berth certs show shop.example.com -a web')

  const remove = withAppOption(certs.command('remove').alias('delete'))
    .description('stop routing a host name to an app')
    .argument('<hostname>', 'the host name')
    .action((hostname: string, options: AppOptions) => removeCertificate(cli, hostname, options))
  addExamples(remove, 'berth certs remove shop.example.com -a web')
}

async function addCertificate(cli: Cli, hostname: string, options: AddOptions): Promise<void> {
  if ((options.cert === undefined) !== (options.key === undefined))
    throw new UsageError('--cert and --key must be used together')
  const own = options.cert !== undefined
  const body = own ? { hostname, fullchain: readPem(options.cert!), private_key: readPem(options.key!) } : { hostname }
  const path = `${appPath(options)}/certificates/${own ? 'custom' : 'acme'}`
  const answer = await request<CertificateDetail>(cli.session(), 'POST', path, body)
  printResult(
    cli.terminal(),
    answer,
    () => `Requests for ${sanitize(hostname)} now go to app ${sanitize(appName(options))}.`,
  )
}

function readPem(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw new UsageError(`cannot read ${file}: ${(error as Error).message}`)
  }
}

async function listCertificates(cli: Cli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<CertificateList>(cli.session(), 'GET', `${appPath(options)}/certificates?limit=500`)
  if (answer.certificates.length === 0 && !terminal.json) {
    return terminal.note(`App ${sanitize(appName(options))} has no custom host names.`)
  }
  const rows = answer.certificates.map((one) => [one.hostname, one.status])
  printResult(terminal, answer, () => table(['HOSTNAME', 'STATUS'], rows, terminal.colors))
}

async function showCertificate(cli: Cli, hostname: string, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const path = `${appPath(options)}/certificates/${encodeSegment(hostname)}`
  const found = await request<CertificateDetail>(cli.session(), 'GET', path)
  const pairs: [string, Cell][] = [
    ['hostname', found.hostname],
    ['status', found.status],
    ...found.certificates.map((one): [string, Cell] => [
      one.source,
      [one.status, one.issuer, one.expires_at && `until ${formatTime(one.expires_at)}`].filter(Boolean).join(', '),
    ]),
  ]
  printResult(terminal, found, () => block(pairs, terminal.colors))
}

async function removeCertificate(cli: Cli, hostname: string, options: AppOptions): Promise<void> {
  const answer = await request(cli.session(), 'DELETE', `${appPath(options)}/certificates/${encodeSegment(hostname)}`)
  printResult(
    cli.terminal(),
    answer,
    () => `Requests for ${sanitize(hostname)} no longer go to app ${sanitize(appName(options))}.`,
  )
}
