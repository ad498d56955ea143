import { once } from 'node:events'
import type { Command } from 'commander'
import type * as Api from '../api-types.ts'
import { addExamples } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { sanitize, sanitizeOutput } from '../output.ts'
import type { StreamRequest } from '../stream.ts'
import { type SandboxCli, servicePath, withServiceArgument } from './find.ts'

/** One event of a service. The stream also carries objects that hold nothing but a message. */
export type ServiceEvent = Partial<Api.ServiceEvent> & { message?: string }

interface LogOptions {
  lines: number
  follow?: true
}

/** The longest duration that the platform accepts for following a log. */
const maxFollowDuration = '24h'

export function addLogCommand(sandbox: Command, cli: SandboxCli): void {
  const logs = withServiceArgument(sandbox.command('logs'))
    .description('show the log of a service; its standard error goes to standard error')
    .option('-n, --lines <count>', 'number of most recent lines to show; 0 for all', parseWholeNumber, 100)
    .option('-f, --follow', 'keep printing new lines')
    .action((name: string, service: string, options: LogOptions) => printLog(cli, name, service, options))
  addExamples(logs, 'berth sandbox logs demo web', 'berth sandbox logs demo web -n 20 -f')
}

async function printLog(cli: SandboxCli, name: string, service: string, { lines, follow }: LogOptions): Promise<void> {
  const query = new URLSearchParams({ lines: String(lines), ...(follow ? { duration: maxFollowDuration } : {}) })
  await printEvents(cli, { method: 'GET', path: `${servicePath(name, service)}/logs?${query}` }, describeGap)
}

function describeGap({ type }: ServiceEvent): string | undefined {
  return type === 'gap' ? '(older output was discarded here)' : undefined
}

/** Writes the output of a service to the matching stream, prints other events as text, and returns those. */
export async function printEvents(
  cli: SandboxCli,
  streamRequest: StreamRequest,
  describeEvent: (event: ServiceEvent) => string | undefined,
): Promise<ServiceEvent[]> {
  const terminal = cli.terminal()
  const others: ServiceEvent[] = []
  const { readEvents } = await import('../stream.ts')
  for await (const event of readEvents<ServiceEvent>(cli.session(), streamRequest)) {
    const isOutput = event.type === 'stdout' || event.type === 'stderr'
    if (!isOutput) others.push(event)
    if (terminal.json) terminal.print(JSON.stringify(event))
    else if (isOutput) await write(cli, event)
    else {
      const sentence = describeEvent(event)
      if (sentence !== undefined) terminal.note(sanitize(sentence))
    }
  }
  return others
}

async function write({ streams }: SandboxCli, { type, data = '' }: ServiceEvent): Promise<void> {
  const stream = type === 'stdout' ? streams.output : streams.errors
  if (!stream.write(stream.isTTY ? sanitizeOutput(data) : data)) await once(stream, 'drain')
}
