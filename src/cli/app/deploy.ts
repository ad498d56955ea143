import { existsSync, readFileSync } from 'node:fs'
import { type Command, Option } from 'commander'
import { encodeSegment, request, requestIfPresent, type Session } from '../client.ts'
import { addExamples, defaultOrg } from '../command.ts'
import { UsageError } from '../errors.ts'
import { collect, parsePairs, parseWholeNumber } from '../option.ts'
import { formatCount, printResult, sanitize } from '../output.ts'
import { startProgress } from '../progress.ts'
import type { DeployFile, GroupConfig } from './deploy-config.ts'
import { requireReplaceable } from './deploy-replace.ts'
import { type Deployment, type DeployResult, imageIsMissing, runDeployment } from './deploy-run.ts'
import { type AppOptions, appName, imageForms, type MachineCli, withAppOption } from './option.ts'
import { type Strategy, strategies } from './release.ts'

interface DeployOptions extends AppOptions {
  config?: string
  image?: string
  org: string
  env?: string[]
  region?: string
  internalPort?: number
  strategy?: Strategy
  waitTimeout?: number
  ha: 'true' | 'false'
  publicIps: boolean
}

const fileNames = ['berth.toml', 'fly.toml']

export function addDeployCommand(program: Command, cli: MachineCli): void {
  const deploy = withAppOption(program.command('deploy'))
    .description('deploy an app: update its machines to what berth.toml describes, one after another')
    .option('-c, --config <file>', 'the deployment file; defaults to berth.toml or fly.toml in this directory')
    .option('-i, --image <image>', 'the image; overrides the one in the file')
    .option('-e, --env <NAME=value>', 'an additional environment variable; may be given several times', collect)
    .option('-r, --region <code>', 'the region of new machines')
    .option(
      '--internal-port <port>',
      'the port on which the program serves HTTP, if there is no file',
      parseWholeNumber,
    )
    .addOption(
      new Option(
        '--strategy <name>',
        'update machines one after another, all at once, one of each group first, or by new machines that replace them',
      ).choices(strategies),
    )
    .option('--wait-timeout <seconds>', 'timeout for each machine', parseWholeNumber)
    .addOption(
      new Option('--ha <switch>', 'create two machines for groups with a service on the first deployment')
        .choices(['true', 'false'])
        .default('true'),
    )
    .option('--no-public-ips', 'do not allocate an address for an app that has none')
    .option('--org <slug>', 'the organization in which the app is created if it does not exist', defaultOrg)
    .action((options: DeployOptions) => deployApp(cli, options))
  deploy.addHelpText(
    'after',
    `
Each machine must be started and pass its checks before the next one is updated. When one fails, the others are not
changed, its last log lines are shown, and the exit code is 1. The file has the format of fly.toml.

Strategies: rolling (the default), immediate, canary (one machine of each process group first, then as rolling) and
bluegreen (starts a new machine for each, and replaces all when the new ones pass their checks; not with volumes).

${imageForms}`,
  )
  addExamples(
    deploy,
    'berth deploy',
    'berth deploy --image registry.example.com/web:1.3',
    'berth deploy -a web --image nginx --internal-port 80',
    'berth deploy --image oci:/srv/images/web:1.3 --strategy bluegreen',
  )
}

async function deployApp(cli: MachineCli, options: DeployOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const deployment = await readDeployment(options)
  if (deployment.unused.length > 0)
    terminal.note(`warning: these settings have no effect: ${deployment.unused.join(', ')}`)
  if (deployment.strategy === 'bluegreen') requireReplaceable([...(deployment.groups?.values() ?? [])])
  await ensureApp(cli, session, deployment, options.org)
  const progress = startProgress(terminal, cli.progress)
  const note = terminal.json ? () => {} : terminal.note
  const result = await runDeployment({ session, progress, note }, deployment).finally(() => progress.end())
  printResult(terminal, result, () => formatResult(deployment.app, result))
}

function formatResult(app: string, result: DeployResult): string {
  const { release, created, updated, destroyed, url, endpoints } = result
  const parts = [
    ...(created.length > 0 ? [`created ${formatCount(created.length, 'machine')}`] : []),
    ...(updated.length > 0 ? [`updated ${formatCount(updated.length, 'machine')}`] : []),
    ...(destroyed.length > 0 ? [`destroyed ${formatCount(destroyed.length, 'machine')}`] : []),
  ]
  const first = `Deployed release ${release} of app ${sanitize(app)}: ${parts.join(', ')}.`
  const lines = [...(url ? [`URL: ${url}`] : []), ...endpoints.map((endpoint) => `Address: ${endpoint}`)]
  return [first, ...lines.map(sanitize)].join('\n')
}

async function ensureApp(cli: MachineCli, session: Session, { app, image }: Deployment, org: string): Promise<void> {
  if (await requestIfPresent(session, `/v1/apps/${encodeSegment(app)}`)) return
  if (image === undefined) throw imageIsMissing()
  await request(session, 'POST', '/v1/apps', { app_name: app, org_slug: org })
  if (!cli.terminal().json) cli.terminal().note(`Created app ${sanitize(app)} in organization ${sanitize(org)}.`)
}

async function readDeployment(options: DeployOptions): Promise<Deployment & { unused: string[] }> {
  const { parseDeployFile } = await import('./deploy-config.ts')
  const found = options.config ?? fileNames.find((name) => existsSync(name))
  const file = found === undefined ? undefined : parseDeployFile(readText(found), found)
  if (file && options.internalPort !== undefined)
    throw new UsageError('--internal-port cannot be used with a deployment file')
  const env = options.env && parsePairs('--env', options.env)
  return {
    app: options.app ?? file?.app ?? appName({}),
    image: options.image ?? file?.image,
    region: options.region ?? file?.region,
    groups: file ? withEnv(file.groups, env) : undefined,
    initialConfig: { ...configForPort(options.internalPort), ...(env && { env }) },
    env,
    strategy: options.strategy ?? file?.strategy ?? 'rolling',
    maxUnavailable: file?.maxUnavailable ?? 1,
    releaseCommand: file?.releaseCommand,
    releaseSeconds: file?.releaseSeconds ?? defaultTimeoutSeconds,
    waitSeconds: options.waitTimeout ?? file?.waitSeconds ?? defaultTimeoutSeconds,
    isHighlyAvailable: options.ha === 'true',
    hasPublicIps: options.publicIps,
    unused: file?.unused ?? [],
  }
}

const defaultTimeoutSeconds = 300

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw new UsageError(`cannot read ${file}: ${(error as Error).message}`)
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
