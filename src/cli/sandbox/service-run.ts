import { type Command, Option } from 'commander'
import type { Service } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples } from '../command.ts'
import { CommandError } from '../errors.ts'
import { printResult, sanitize } from '../output.ts'
import type { StreamRequest } from '../stream.ts'
import { type SandboxCli, sandboxPath, servicePath, withServiceArgument } from './find.ts'
import { printEvents, type ServiceEvent } from './log.ts'

interface StartOptions {
  name: string
  service: string
  watch: string
}

/** Returns a new option for each command that adds it. */
export function watchOption(): Option {
  return new Option(
    '--watch <duration>',
    'how long to show its output, such as 10s; the service keeps running',
  ).default('2s')
}

export function addRunCommands(services: Command, cli: SandboxCli): void {
  addStart(services, cli, 'start', 'start a service and the services it needs')
  addStart(services, cli, 'restart', 'stop a service if it is running, and start it')

  const stop = withServiceArgument(services.command('stop'))
    .description('stop a service; it stays stopped until it is started')
    .option('--timeout <duration>', 'time to exit before it is killed', '10s')
    .action((name: string, service: string, options: { timeout: string }) => stopService(cli, name, service, options))
  addExamples(stop, 'berth sandbox services stop demo web', 'berth sandbox services stop demo web --timeout 1m')

  const remove = withServiceArgument(services.command('delete'))
    .description('stop a service and delete it with its log')
    .action((name: string, service: string) => deleteService(cli, name, service))
  addExamples(remove, 'berth sandbox services delete demo web')

  const signal = withServiceArgument(services.command('signal'))
    .description('send a signal to a service; it is restarted if it exits')
    .argument('<signal>', 'such as HUP, SIGUSR1 or 15')
    .action((name: string, service: string, word: string) => signalService(cli, name, service, word))
  addExamples(signal, 'berth sandbox services signal demo web HUP')
}

function addStart(services: Command, cli: SandboxCli, verb: 'start' | 'restart', description: string): void {
  const command = withServiceArgument(services.command(verb))
    .description(description)
    .addOption(watchOption())
    .action((name: string, service: string, { watch }: { watch: string }) =>
      followStart(cli, { name, service, watch }, (query) => ({
        method: 'POST',
        path: `${servicePath(name, service)}/${verb}?${query}`,
      })),
    )
  addExamples(command, `berth sandbox services ${verb} demo web`, `berth sandbox services ${verb} demo web --watch 10s`)
}

/** Shows events and output of the service while it starts, and finally its state. */
export async function followStart(
  cli: SandboxCli,
  { name, service, watch }: StartOptions,
  requestFor: (query: URLSearchParams) => StreamRequest,
): Promise<void> {
  const terminal = cli.terminal()
  const events = await printEvents(cli, requestFor(new URLSearchParams({ duration: watch })), describeStartEvent)
  const state = await request<Service>(cli.session(), 'GET', servicePath(name, service))
  const reason = failureReason(events) ?? (state.state.status === 'failed' ? state.state.error : undefined)
  if (reason !== undefined) throw new CommandError(`service ${service} failed: ${reason}`)
  if (!terminal.json) terminal.print(formatState(state))
}

/** A service that exited while it was watched has failed, even if it has been restarted since. */
function failureReason(events: ServiceEvent[]): string | undefined {
  const problem = events.find(({ type }) => type === 'error')
  if (problem) return problem.data?.trim() ?? 'it could not be started'
  const end = events.find(({ type }) => type === 'exit')
  return end && `exited with code ${end.exit_code}`
}

function describeStartEvent({ message }: ServiceEvent): string | undefined {
  if (message !== undefined) return 'The service already runs with this definition; "restart" restarts it.'
  return undefined
}

function formatState({ name, http_port, state }: Service): string {
  const details = [
    ...(state.pid === undefined ? [] : [`pid ${state.pid}`]),
    ...(http_port === undefined ? [] : [`HTTP port ${http_port}`]),
    ...(state.health ? [state.health.status] : []),
  ]
  return sanitize(`Service ${name} is ${state.status}${details.length > 0 ? ` (${details.join(', ')})` : ''}.`)
}

async function stopService(
  cli: SandboxCli,
  name: string,
  service: string,
  { timeout }: { timeout: string },
): Promise<void> {
  const path = `${servicePath(name, service)}/stop?${new URLSearchParams({ timeout })}`
  const events = await printEvents(cli, { method: 'POST', path }, () => undefined)
  const stopped = events.find(({ type }) => type === 'stopped')
  const problem = events.find(({ type }) => type === 'error')
  if (problem || !stopped)
    throw new CommandError(`service ${service} did not stop: ${problem?.data?.trim() ?? 'no answer'}`)
  const { exit_code } = stopped
  const code = exit_code === undefined ? '' : `; it exited with code ${exit_code}`
  if (!cli.terminal().json) cli.terminal().print(`Stopped service ${sanitize(service)}${code}.`)
}

async function deleteService(cli: SandboxCli, name: string, service: string): Promise<void> {
  const answer = await request(cli.session(), 'DELETE', servicePath(name, service))
  printResult(cli.terminal(), answer, () => `Deleted service ${sanitize(service)}.`)
}

async function signalService(cli: SandboxCli, name: string, service: string, signal: string): Promise<void> {
  const body = { name: service, signal }
  const answer = await request(cli.session(), 'POST', `${sandboxPath(name)}/services/signal`, body)
  printResult(cli.terminal(), answer, () => `Sent ${sanitize(signal)} to service ${sanitize(service)}.`)
}
