import type { Command } from 'commander'
import type { Service } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples } from '../command.ts'
import { block, type Cell, formatTime, printResult, sanitize, table } from '../output.ts'
import { type SandboxCli, sandboxPath, servicePath, withSandboxArgument, withServiceArgument } from './find.ts'
import { addLogCommand } from './log.ts'
import { addPutCommand } from './service-put.ts'
import { addRunCommands } from './service-run.ts'

export function addServiceCommands(sandbox: Command, cli: SandboxCli): void {
  const services = sandbox
    .command('services')
    .alias('service')
    .description('services, which a sandbox keeps running; with only a sandbox name, lists its services')
    .argument('[sandbox]', 'the name of the sandbox whose services are listed')
    .action((name: string | undefined) =>
      name === undefined ? services.help({ error: true }) : listServices(cli, name),
    )
  addExamples(
    services,
    'berth sandbox services demo',
    'berth sandbox services put demo web --http-port 8080 -- python3 -m http.server 8080',
    'berth sandbox services stop demo web',
  )
  const listing = withSandboxArgument(services.command('list').alias('ls'))
    .description('list the services of a sandbox')
    .action((name: string) => listServices(cli, name))
  addExamples(listing, 'berth sandbox services list demo', 'berth sandbox services ls demo --json')

  const show = withServiceArgument(services.command('show'))
    .description('show a service')
    .action((name: string, service: string) => showService(cli, name, service))
  addExamples(show, 'berth sandbox services show demo web')

  addPutCommand(services, cli)
  addRunCommands(services, cli)
  addLogCommand(sandbox, cli)
}

async function listServices(cli: SandboxCli, name: string): Promise<void> {
  const terminal = cli.terminal()
  const services = await request<Service[]>(cli.session(), 'GET', `${sandboxPath(name)}/services`)
  if (services.length === 0 && !terminal.json) {
    return terminal.note(
      `No services; "berth sandbox services put ${sanitize(name)} <service> -- <command>" creates one.`,
    )
  }
  const headers = ['NAME', 'STATUS', 'PID', 'HEALTH', 'RESTARTS', 'HTTP PORT', 'NEEDS', 'COMMAND']
  const rows = services.map((service) => [
    service.name,
    service.state.status,
    service.state.pid,
    service.state.health?.status,
    service.state.restart_count ?? 0,
    service.http_port,
    service.needs.join(', '),
    [service.cmd, ...service.args].join(' '),
  ])
  printResult(terminal, services, () => table(headers, rows, terminal.colors))
}

async function showService(cli: SandboxCli, name: string, service: string): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<Service>(cli.session(), 'GET', servicePath(name, service))
  printResult(terminal, answer, () => block(describeService(answer), terminal.colors))
}

function describeService(service: Service): [string, Cell][] {
  const { state, env, health, dir, http_port } = service
  const optional: [string, Cell][] = [
    ['pid', state.pid],
    ['since', formatTime(state.started_at ?? null)],
    ['error', state.error],
    ['exit code', state.exit_code],
    ['restarts', state.restart_count],
    ['next restart', formatTime(state.next_restart_at ?? null)],
    ['health', state.health?.status],
    ['http port', http_port],
    ['needs', service.needs.join(', ')],
    ['directory', dir],
    [
      'variables',
      env &&
        Object.entries(env)
          .map(([key, value]) => `${key}=${value}`)
          .join(' '),
    ],
    ['check', health && JSON.stringify(health)],
  ]
  return [
    ['name', service.name],
    ['status', state.status],
    ...optional.filter(([, value]) => value !== undefined && value !== ''),
    ['command', [service.cmd, ...service.args].join(' ')],
  ]
}
