import type { Command } from 'commander'
import { addExamples } from '../command.ts'
import { UsageError } from '../errors.ts'
import { type SandboxCli, withSandboxArgument } from './find.ts'
import type { PortPair } from './proxy-server.ts'

export function addProxyCommand(sandbox: Command, cli: SandboxCli): void {
  const proxy = withSandboxArgument(sandbox.command('proxy'))
    .description('forward local ports to ports in a sandbox, until interrupted')
    .argument('<port...>', '8080, or local:remote such as 3000:8080; 0:8080 uses any free local port')
    .action(async (name: string, ports: string[]) => {
      const pairs = ports.map(parsePortPair)
      const { serveProxy } = await import('./proxy-server.ts')
      await serveProxy(cli, name, pairs)
    })
  addExamples(
    proxy,
    'berth sandbox proxy demo 8080',
    'berth sandbox proxy demo 15432:5432 0:8080',
    'psql -h 127.0.0.1 -p 15432',
  )
}

export function parsePortPair(text: string): PortPair {
  const [, local, remote] = /^(?:(\d{1,5}):)?(\d{1,5})$/.exec(text) ?? []
  const pair = { local: Number(local ?? remote), remote: Number(remote) }
  if (pair.remote >= 1 && pair.remote <= 65_535 && pair.local <= 65_535) return pair
  throw new UsageError(`"${text}" must be a port such as 8080, or two such as 3000:8080`)
}
