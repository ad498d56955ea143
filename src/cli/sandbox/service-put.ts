import { type Command, Option } from 'commander'
import { addExamples } from '../command.ts'
import { UsageError } from '../errors.ts'
import { collect, parseWholeNumber } from '../option.ts'
import { parseVariables, type SandboxCli, servicePath, withServiceArgument } from './find.ts'
import { followStart, watchOption } from './service-run.ts'

interface PutOptions {
  httpPort?: number
  needs?: string[]
  env?: string[]
  dir?: string
  healthPath?: string
  healthPort?: number
  healthCommand?: string
  healthInterval?: string
  healthTimeout?: string
  healthThreshold?: number
  watch: string
}

export function addPutCommand(services: Command, cli: SandboxCli): void {
  const put = withServiceArgument(services.command('put'))
    .description('define a service and start it; replaces an existing service of the same name')
    .argument('<command...>', 'the program and its arguments; write -- before them. It is not run by a shell')
    .option('--http-port <port>', 'route the URL of the sandbox to this port', parseWholeNumber)
    .option('--needs <service>', 'a service that must be ready first; may be given several times', collect)
    .option('--env <NAME=value>', 'an environment variable; may be given several times', collect)
    .option('--dir <path>', 'working directory; /home/sprite when omitted')
    .addOption(new Option('--health-path <path>', 'health check: request this path').conflicts('healthCommand'))
    .option('--health-port <port>', 'the port for --health-path; defaults to the HTTP port', parseWholeNumber)
    .option('--health-command <line>', 'health check: run this command in a shell')
    .option('--health-interval <duration>', 'time between checks; 10s when omitted')
    .option('--health-timeout <duration>', 'timeout of a check; 5s when omitted')
    .option(
      '--health-threshold <count>',
      'consecutive failures until it is unhealthy; 3 when omitted',
      parseWholeNumber,
    )
    .addOption(watchOption())
    .action((name: string, service: string, words: string[], options: PutOptions) =>
      followStart(cli, { name, service, watch: options.watch }, (query) => ({
        method: 'PUT',
        path: `${servicePath(name, service)}?${query}`,
        body: serviceDefinition(words, options),
      })),
    )
  addExamples(
    put,
    'berth sandbox services put demo web --http-port 8080 -- python3 -m http.server 8080',
    "berth sandbox services put demo db --health-command 'pg_isready' -- postgres -D /var/lib/pg",
    'berth sandbox services put demo api --needs db --env PORT=3000 --http-port 3000 --health-path /up -- node server.js',
  )
}

function serviceDefinition([cmd, ...args]: string[], options: Omit<PutOptions, 'watch'>): object {
  return {
    cmd,
    args,
    needs: options.needs,
    env: parseVariables(options.env),
    dir: options.dir,
    http_port: options.httpPort,
    health: readHealth(options),
  }
}

function readHealth(options: Omit<PutOptions, 'watch'>): object | undefined {
  const { healthPath: path, healthPort: port, healthCommand: line } = options
  const limits = {
    interval: options.healthInterval,
    timeout: options.healthTimeout,
    threshold: options.healthThreshold,
  }
  if (path !== undefined) return { http: { path, port }, ...limits }
  if (line !== undefined) return { command: ['sh', '-c', line], ...limits }
  if (Object.values({ ...limits, port }).some((value) => value !== undefined)) {
    throw new UsageError('a health check needs --health-path or --health-command')
  }
  return undefined
}
