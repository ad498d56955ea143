import { type Command, Option } from 'commander'
import { request } from '../client.ts'
import { addExamples } from '../command.ts'
import { CommandError } from '../errors.ts'
import { collect, parsePairs, parseWholeNumber } from '../option.ts'
import { printResult, sanitize } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { parseGuest, parseMemory, parseMount, parseServices } from './machine-config.ts'
import {
  describeExit,
  getMachine,
  type Machine,
  type MachineConfig,
  machinesPath,
  unexpectedState,
  waitUntilSettled,
} from './machine-find.ts'
import { minUpMs, type Rollout, withLastLogLines } from './machine-roll.ts'
import { type AppOptions, appName, imageForms, type MachineCli, withAppOption } from './option.ts'

export interface ConfigOptions {
  env?: string[]
  port?: string[]
  volume?: string[]
  metadata?: string[]
  vmSize?: string
  vmMemory?: number
  vmCpus?: number
  vmCpuKind?: string
  entrypoint?: string
  restart?: string
  schedule?: string
  rm?: true
}

interface RunOptions extends AppOptions, ConfigOptions {
  name?: string
  region?: string
  detach?: true
}

const runTimeoutSeconds = 600 // pulling a large image takes time

export function addMachineRun(machines: Command, cli: MachineCli): void {
  const run = withRunOptions(machines.command('run'))
    .description('create a machine and start it')
    .option('-d, --detach', 'do not wait until it is started')
    .action((image: string, words: string[], options: RunOptions) => runMachine(cli, image, words, options, true))
    .addHelpText('after', `\n${imageForms}`)
  addExamples(
    run,
    'berth machine run nginx -a web --port 80:80/tcp:http',
    'berth machine run busybox -a web --rm --restart no -- sh -c "echo hello"',
    'berth machine run postgres:17 -a db --volume data:/var/lib/postgresql --env POSTGRES_PASSWORD=secret',
    'berth machine run registry.example.com/report -a web --schedule daily --restart no',
    'berth machine run oci:/srv/images/web:1.2 -a web',
  )
  const create = withRunOptions(machines.command('create'))
    .description('create a machine without starting it')
    .action((image: string, words: string[], options: RunOptions) => runMachine(cli, image, words, options, false))
  addExamples(create, 'berth machine create nginx -a web --name spare')
}

/** Fails when the program exits and is started again, which would go on in the background. */
function watchFirstMoments({ session, app, progress }: Omit<Rollout, 'waitSeconds'>, id: string): Promise<Machine> {
  const deadline = Date.now() + minUpMs
  return pollUntil(
    progress,
    () => getMachine(session, app, id),
    (seen) => {
      if (seen.state !== 'started') return undefined
      if (seen.last_exit)
        throw new CommandError(
          `the program of machine ${id} ${describeExit(seen.last_exit)} right after it was started, and is restarted`,
        )
      return Date.now() > deadline ? undefined : `Machine ${id} is starting`
    },
  )
}

function requireSuccess(machine: Machine): Machine {
  const hasEnded = machine.state === 'stopped' || (machine.state === 'destroyed' && machine.config.auto_destroy)
  if (machine.failure || !hasEnded) throw unexpectedState(machine, 'started')
  const exit = machine.last_exit
  if (exit && exit.exit_code !== 0 && !exit.requested_stop)
    throw new CommandError(`the program of machine ${machine.id} ${describeExit(exit)}`)
  return machine
}

function withRunOptions(command: Command): Command {
  return withConfigOptions(withAppOption(command))
    .argument('<image>', 'such as nginx, ghcr.io/acme/web:1.2, registry.example.com/web@sha256:… or oci:/srv/web')
    .argument('[command...]', 'the command to run instead of that of the image; write -- before it')
    .option('--name <name>', 'its name, unique in the app; generated when omitted')
    .option('-r, --region <code>', 'the region')
    .option('--volume <volume:path>', 'mount a volume, by id or by name', collect)
    .option('--rm', 'destroy the machine when its program exits')
}

/** Adds the options that describe the configuration of a machine. */
export function withConfigOptions(command: Command): Command {
  const policies = ['no', 'on-failure', 'always']
  const intervals = ['hourly', 'daily', 'weekly', 'monthly', 'never']
  return command
    .option('-e, --env <NAME=value>', 'an environment variable; may be given several times', collect)
    .option(
      '-p, --port <port:internal/protocol:handlers>',
      'expose a port to clients; may be given several times',
      collect,
    )
    .option('--metadata <name=value>', 'metadata to find it by; may be given several times', collect)
    .option('--entrypoint <program>', 'replaces the entrypoint of the image')
    .option('--vm-size <name>', 'a named size, such as shared-cpu-2x')
    .option('--vm-memory <size>', 'memory, such as 512mb or 1gb', parseMemory)
    .option('--vm-cpus <count>', 'number of CPUs', parseWholeNumber)
    .addOption(new Option('--vm-cpu-kind <kind>', 'the kind of CPUs').choices(['shared', 'performance']))
    .addOption(new Option('--restart <policy>', 'when to restart its program').choices(policies))
    .addOption(new Option('--schedule <interval>', 'start it this often while it is stopped').choices(intervals))
}

/** Returns only the settings that were given as options. */
export function readConfig(options: ConfigOptions, words: string[]): Partial<MachineConfig> {
  const init = {
    ...(options.entrypoint !== undefined && { entrypoint: [options.entrypoint] }),
    ...(words.length > 0 && { cmd: words }),
  }
  const { vmSize, vmCpuKind, vmCpus, vmMemory } = options
  return {
    ...parseGuest(vmSize, { cpu_kind: vmCpuKind, cpus: vmCpus, memory_mb: vmMemory }),
    ...(options.env && { env: parsePairs('--env', options.env) }),
    ...(options.metadata && { metadata: parsePairs('--metadata', options.metadata) }),
    ...(options.port && { services: parseServices(options.port) }),
    ...(options.volume && { mounts: options.volume.map(parseMount) }),
    ...(options.restart && { restart: { policy: options.restart } }),
    ...(options.schedule && { schedule: options.schedule === 'never' ? undefined : options.schedule }),
    ...(options.rm && { auto_destroy: true }),
    ...(Object.keys(init).length > 0 && { init }),
  }
}

async function runMachine(
  cli: MachineCli,
  image: string,
  words: string[],
  options: RunOptions,
  launch: boolean,
): Promise<void> {
  const app = appName(options)
  const session = cli.session()
  const { name, region } = options
  const body = {
    config: { ...readConfig(options, words), image },
    name,
    region,
    skip_launch: launch ? undefined : true,
  }
  const made = await request<Machine>(session, 'POST', machinesPath(app), body)
  const machine = launch && !options.detach ? await waitUntilRun(cli, app, made) : made
  printResult(
    cli.terminal(),
    machine,
    () => `Machine ${made.id} (${sanitize(made.name)}) is ${describeState(machine)}.`,
  )
}

function describeState({ state, last_exit: exit }: Machine): string {
  return `${sanitize(state)}${exit ? `; its program ${describeExit(exit)}` : ''}`
}

/** Waits until the program has started and stays up, or has ended with exit code 0. */
async function waitUntilRun(cli: MachineCli, app: string, made: Machine): Promise<Machine> {
  const progress = startProgress(cli.terminal(), cli.progress)
  progress.show(`Machine ${made.id} is starting`)
  try {
    const rollout = { session: cli.session(), app, progress }
    return await withLastLogLines(rollout, made.id, async () => {
      const settle = () => waitUntilSettled(rollout.session, app, made, runTimeoutSeconds)
      const machine = await settle()
      if (machine.state !== 'started') return requireSuccess(machine)
      const seen = await watchFirstMoments(rollout, made.id)
      return seen.state === 'started' ? seen : requireSuccess(await settle())
    })
  } finally {
    progress.end()
  }
}
