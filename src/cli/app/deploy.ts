import { existsSync, readFileSync } from 'node:fs'
import { type Command, Option } from 'commander'
import { encodeSegment, request, requestIfPresent, type Session } from '../client.ts'
import { addExamples, defaultOrg } from '../command.ts'
import { Misuse } from '../failure.ts'
import { collect, parsePairs, parseWholeNumber } from '../option.ts'
import { formatCount, printAnswer, visible } from '../output.ts'
import { startProgress } from '../progress.ts'
import type { DeployFile, GroupConfig } from './deploy-config.ts'
import { type Deployment, type DeployResult, runDeployment } from './deploy-run.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'

interface DeployOptions extends AppOptions {
  config?: string
  image?: string
  org: string
  env?: string[]
  region?: string
  internalPort?: number
  strategy?: string
  waitTimeout?: number
  ha: 'true' | 'false'
  publicIps: boolean
}

const fileNames = ['berth.toml', 'fly.toml']

export function addDeployCommand(program: Command, cli: MachineCli): void {
  const deploy = withAppOption(program.command('deploy'))
    .description('make the machines of an app run what berth.toml says, one after the other')
    .option('-c, --config <file>', 'the file; berth.toml or fly.toml in this directory when omitted')
    .option('-i, --image <image>', 'the image, in place of the one in the file')
    .option('-e, --env <NAME=value>', 'a variable beside those in the file; may be given several times', collect)
    .option('-r, --region <code>', 'where new machines are made')
    .option('--internal-port <port>', 'without a file: the port at which the program answers HTTP', parseWholeNumber)
    .addOption(new Option('--strategy <name>', 'all machines at once, or not').choices(['rolling', 'immediate']))
    .option('--wait-timeout <seconds>', 'how long each machine may take', parseWholeNumber)
    .addOption(
      new Option('--ha <switch>', 'two machines for what has a service, on the first deployment')
        .choices(['true', 'false'])
        .default('true'),
    )
    .option('--no-public-ips', 'do not give an address to an app that has none')
    .option('--org <slug>', 'where the app is created when there is none of this name', defaultOrg)
    .action((options: DeployOptions) => deployApp(cli, options))
  deploy.addHelpText(
    'after',
    `
Each machine must be started and pass its checks before the next one is touched. When one does not, the others stay as
they are, its last lines are shown, and the exit code is 1. The names in the file are those of fly.toml.`,
  )
  addExamples(
    deploy,
    'berth deploy',
    'berth deploy --image registry.example.com/web:1.3',
    'berth deploy -a web --image nginx --internal-port 80',
  )
}

async function deployApp(cli: MachineCli, options: DeployOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const deployment = await readDeployment(options)
  if (deployment.unused.length > 0) terminal.note(`warning: not used here: ${deployment.unused.join(', ')}`)
  await ensureApp(cli, session, deployment.app, options.org)
  const progress = startProgress(terminal, cli.progress)
  const note = terminal.json ? () => {} : terminal.note
  const result = await runDeployment({ session, progress, note }, deployment).finally(() => progress.end())
  printAnswer(terminal, result, () => formatResult(deployment.app, result))
}

function formatResult(app: string, { release, created, updated, destroyed, url }: DeployResult): string {
  const parts = [
    ...(created.length > 0 ? [`created ${formatCount(created.length, 'machine')}`] : []),
    ...(updated.length > 0 ? [`updated ${formatCount(updated.length, 'machine')}`] : []),
    ...(destroyed.length > 0 ? [`destroyed ${formatCount(destroyed.length, 'machine')}`] : []),
  ]
  const first = `Deployed release ${release} of app ${visible(app)}: ${parts.join(', ')}.`
  return url ? `${first}\nIt answers at ${visible(url)}` : first
}

async function ensureApp(cli: MachineCli, session: Session, app: string, org: string): Promise<void> {
  if (await requestIfPresent(session, `/v1/apps/${encodeSegment(app)}`)) return
  await request(session, 'POST', '/v1/apps', { app_name: app, org_slug: org })
  if (!cli.terminal().json) cli.terminal().note(`Created app ${visible(app)} in organization ${visible(org)}.`)
}

async function readDeployment(options: DeployOptions): Promise<Deployment & { unused: string[] }> {
  const { parseDeployFile } = await import('./deploy-config.ts')
  const found = options.config ?? fileNames.find((name) => existsSync(name))
  const file = found === undefined ? undefined : parseDeployFile(readText(found), found)
  if (file && options.internalPort !== undefined) throw new Misuse('--internal-port is for apps without a file')
  const env = options.env && parsePairs('--env', options.env)
  return {
    app: options.app ?? file?.app ?? appName({}),
    image: options.image ?? file?.image,
    region: options.region ?? file?.region,
    groups: file ? withEnv(file.groups, env) : undefined,
    initialConfig: { ...configForPort(options.internalPort), ...(env && { env }) },
    env,
    maxUnavailable: maxUnavailableFor(options.strategy, file),
    releaseCommand: file?.releaseCommand,
    releaseSeconds: file?.releaseSeconds ?? defaultTimeoutSeconds,
    waitSeconds: options.waitTimeout ?? file?.waitSeconds ?? defaultTimeoutSeconds,
    isHighlyAvailable: options.ha === 'true',
    hasPublicIps: options.publicIps,
    unused: file?.unused ?? [],
  }
}

const defaultTimeoutSeconds = 300

function maxUnavailableFor(strategy: string | undefined, file: DeployFile | undefined): number | 'all' {
  if (strategy === 'immediate') return 'all'
  if (strategy === 'rolling' && file?.maxUnavailable === 'all') return 1
  return file?.maxUnavailable ?? 1
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw new Misuse(`cannot read ${file}: ${(error as Error).message}`)
  }
}

function withEnv(groups: DeployFile['groups'], env: Record<string, string> | undefined): DeployFile['groups'] {
  if (!env) return groups
  return new Map([...groups].map(([name, config]) => [name, { ...config, env: { ...config.env, ...env } }]))
}

function configForPort(port: number | undefined): GroupConfig {
  if (port === undefined) return {}
  const ports = [
    { port: 80, handlers: ['http'] },
    { port: 443, handlers: ['tls', 'http'] },
  ]
  return { services: [{ protocol: 'tcp', internal_port: port, ports }] }
}
