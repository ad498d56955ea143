import type { Command } from 'commander'
import type { IpAssignment, IpAssignmentList } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { formatTime, printResult, sanitize, table } from '../output.ts'
import { type AppOptions, appName, appPath, withAppOption } from './option.ts'

export function addIpCommands(program: Command, cli: Cli): void {
  const ips = program
    .command('ips')
    .alias('ip')
    .description('addresses of an app; without one it cannot be reached from outside')
  addExamples(ips, 'berth ips allocate-v4 --shared -a web', 'berth ips list -a web')

  const list = withAppOption(ips.command('list').alias('ls'))
    .description('list the addresses of an app')
    .action((options: AppOptions) => listAddresses(cli, options))
  addExamples(list, 'berth ips list -a web', 'berth ips list -a web --json')

  const four = withAppOption(ips.command('allocate-v4'))
    .description('allocate an IPv4 address for an app')
    .option('--shared', 'use the address that apps share; requests are routed by host name')
    .action((options: AppOptions & { shared?: true }) => allocate(cli, options, options.shared ? 'shared_v4' : 'v4'))
  addExamples(four, 'berth ips allocate-v4 --shared -a web')

  const six = withAppOption(ips.command('allocate-v6'))
    .description('allocate an IPv6 address for an app')
    .option('--private', 'an address that only the private network of the organization can reach')
    .action((options: AppOptions & { private?: true }) => allocate(cli, options, options.private ? 'private_v6' : 'v6'))
  addExamples(six, 'berth ips allocate-v6 -a web', 'berth ips allocate-v6 --private -a web')

  const release = withAppOption(ips.command('release'))
    .description('release addresses of an app')
    .argument('<address...>', 'the addresses')
    .action((addresses: string[], options: AppOptions) => releaseAddresses(cli, addresses, options))
  addExamples(release, 'berth ips release 127.1.0.7 -a web')
}

async function listAddresses(cli: Cli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<IpAssignmentList>(cli.session(), 'GET', `${appPath(options)}/ip_assignments`)
  if (answer.ips.length === 0 && !terminal.json) {
    return terminal.note(
      `App ${sanitize(appName(options))} has no address; "berth ips allocate-v4 --shared" allocates one.`,
    )
  }
  const rows = answer.ips.map((ip) => [ip.ip, ip.type, ip.region, formatTime(ip.created_at)])
  printResult(terminal, answer, () => table(['ADDRESS', 'KIND', 'REGION', 'CREATED'], rows, terminal.colors))
}

async function allocate(cli: Cli, options: AppOptions, type: string): Promise<void> {
  const answer = await request<IpAssignment>(cli.session(), 'POST', `${appPath(options)}/ip_assignments`, { type })
  printResult(cli.terminal(), answer, () => `App ${sanitize(appName(options))} has the address ${sanitize(answer.ip)}.`)
}

async function releaseAddresses(cli: Cli, addresses: string[], options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  for (const address of addresses) {
    const path = `${appPath(options)}/ip_assignments/${encodeURIComponent(address)}`
    const answer = await request(cli.session(), 'DELETE', path)
    printResult(terminal, answer, () => `Released ${sanitize(address)}.`)
  }
}
