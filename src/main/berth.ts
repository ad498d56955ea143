// The command line. What a command needs is imported when it runs, so that help and completion stay fast.
import { createInterface } from 'node:readline/promises'
import { Command, CommanderError } from 'commander'
import { addOrgCommands } from '../cli/account/org.ts'
import { addTokenCommands } from '../cli/account/token.ts'
import { addAppCommands } from '../cli/app/app.ts'
import { addCertificateCommands } from '../cli/app/certificate.ts'
import { addDeployCommand } from '../cli/app/deploy.ts'
import { addIpCommands } from '../cli/app/ip.ts'
import { addMachineCommands } from '../cli/app/machine.ts'
import { addLogsCommand } from '../cli/app/machine-log.ts'
import type { MachineCli } from '../cli/app/option.ts'
import { addScaleCommands } from '../cli/app/scale.ts'
import { addSecretCommands } from '../cli/app/secret.ts'
import { addVolumeCommands } from '../cli/app/volume.ts'
import { addExamples, type Cli } from '../cli/command.ts'
import { addCompletionCommand } from '../cli/completion.ts'
import { Failure, Interruption, Misuse, Refusal } from '../cli/failure.ts'
import { block, type Cell, printAnswer, type Terminal, table, timeText, visible } from '../cli/output.ts'
import { addPostgresCommands } from '../cli/postgres/commands.ts'
import type { PsqlTarget } from '../cli/postgres/connect.ts'
import { addSandboxCommands } from '../cli/sandbox/commands.ts'
import { describeError } from '../model/errors.ts'
import { type Config, describeConfig, readConfig } from './config.ts'
import type { DoctorReport } from './doctor/doctor.ts'
import { openSandboxSession, openSession } from './session.ts'
import type { StatusReport } from './status.ts'
import { version } from './version.ts'

// Like shells, 128 and the number of the signal.
const exitCodes = { done: 0, refused: 1, misused: 2, interrupted: 130 }

type Streams = Omit<Terminal, 'json'>

export function buildProgram(streams: Streams): Command {
  const program = new Command('berth')
    .description('Berth: apps, managed Postgres and sandboxes on your own machine.')
    .version(version, '-v, --version', 'print the version')
    .option('--json', 'print what the platform answered, as JSON')
    .option('--url <url>', 'the platform to talk to; BERTH_URL, or else the one of the local home')
    .helpOption('-h, --help', 'show help')
    .configureHelp({ showGlobalOptions: true })
    .exitOverride()
    .configureOutput({ writeErr: (text) => wantsJson(program) || process.stderr.write(text) })
    .addHelpText(
      'after',
      `
The token comes from BERTH_TOKEN, or else from the local home. "berth config" shows all settings.
Exit codes: 0 done, 1 refused or failed, 2 the command cannot be run as given, 130 interrupted.`,
    )
  addExamples(
    program,
    'berth up',
    'berth postgres create shop',
    'berth postgres restore shop --to 5m-ago',
    'berth deploy -a web --image nginx --internal-port 80',
    'berth sandbox create demo',
    'berth help postgres restore',
  )
  const cli: Cli = {
    session: () => openSession(settings(), program.opts<{ url?: string }>().url),
    terminal: () => ({ ...streams, json: wantsJson(program) }),
  }
  const machineCli: MachineCli = { ...cli, progress: process.stderr, readInput, setExitCode }
  program.commandsGroup('Apps:')
  addAppCommands(program, cli)
  addDeployCommand(program, machineCli)
  addMachineCommands(program, machineCli)
  addScaleCommands(program, machineCli)
  addLogsCommand(program, cli)
  addSecretCommands(program, machineCli)
  addVolumeCommands(program, cli)
  addIpCommands(program, cli)
  addCertificateCommands(program, cli)
  program.commandsGroup('Resources:')
  addPostgresCommands(program, { ...cli, progress: process.stderr, runPsql })
  addSandboxCommands(program, {
    ...cli,
    session: () => openSandboxSession(settings(), program.opts<{ url?: string }>().url),
    streams: { input: process.stdin, output: process.stdout, errors: process.stderr },
    setExitCode,
  })
  addOrgCommands(program, cli)
  addTokenCommands(program, cli)
  program.commandsGroup('Platform:')
  addLifeCommands(program, cli)
  addLookCommands(program, cli)
  program.commandsGroup('Command line:')
  addCompletionCommand(program, cli)
  pointToHelp(program, 'berth')
  return program
}

function wantsJson(program: Command): boolean {
  return program.opts<{ json?: true }>().json === true
}

function setExitCode(code: number): void {
  process.exitCode = code
}

async function readInput(): Promise<string> {
  return String(Buffer.concat(await process.stdin.toArray()))
}

function addLifeCommands(program: Command, cli: Cli): void {
  const up = program
    .command('up')
    .description('start the platform and stay in the foreground; what it runs goes on when this ends')
    .action(async () => (await import('./up.ts')).up(settings()))
  addExamples(up, 'berth up', 'BERTH_HOME=/srv/berth BERTH_API_LISTEN=127.0.0.1:8080 berth up')

  const down = program
    .command('down')
    .description('stop everything the platform runs; data stays')
    .action(async () => {
      const config = settings()
      await (await import('./down.ts')).down(config)
      printAnswer(cli.terminal(), {}, () => `Nothing runs in ${visible(config.home)} any more.`)
    })
  addExamples(down, 'berth down')

  const worker = program
    .command('worker')
    .description('run a further worker beside the one in "berth up", on the same state database')
    .action(async () => (await import('./worker.ts')).worker(settings()))
  addExamples(worker, 'berth worker')

  const install = program
    .command('install')
    .description('write systemd units that start the platform with the machine')
    .option('--print', 'print the units instead of writing them')
    .option('--directory <directory>', 'where to write them')
    .action((options: { print?: true; directory?: string }) => runInstall(cli.terminal(), options))
  addExamples(install, 'berth install --print', 'sudo berth install')
}

function addLookCommands(program: Command, cli: Cli): void {
  const status = program
    .command('status')
    .description('show what runs; exits with 1 when the platform does not answer')
    .action(async () => {
      const report = await (await import('./status.ts')).status(settings())
      const terminal = cli.terminal()
      printAnswer(terminal, report, () => statusText(report, terminal.colors))
      if (!report.answering) process.exitCode = exitCodes.refused
    })
  addExamples(status, 'berth status', 'berth status --json')

  const doctor = program
    .command('doctor')
    .description('check this machine for what the platform needs; exits with 1 when there is a problem')
    .action(async () => {
      const report = await (await import('./doctor/doctor.ts')).doctor(settings())
      const terminal = cli.terminal()
      printAnswer(terminal, report, () => doctorText(report, terminal.colors))
      if (report.checks.some(({ level }) => level === 'problem')) process.exitCode = exitCodes.refused
    })
  addExamples(doctor, 'berth doctor', 'berth doctor --json')

  const config = program
    .command('config')
    .description('show every setting, its value and what it is for; secrets are not shown')
    .action(() => {
      const terminal = cli.terminal()
      const described = describeConfig()
      printAnswer(terminal, described, () => configText(described, terminal.colors))
      settings() // what is not valid is shown as it is, and then refused
    })
  addExamples(config, 'berth config', 'BERTH_LOG_LEVEL=debug berth config --json')
}

async function runInstall(terminal: Terminal, options: { print?: true; directory?: string }): Promise<void> {
  const { install, nextCommands } = await import('./install.ts')
  const { print = false, directory } = options
  const lines = await install(settings(), { print, ...(directory ? { directory } : {}) })
  const next = print ? [] : ['', 'Now run:', ...nextCommands.map((command) => `  ${command}`)]
  printAnswer(terminal, lines, () => [...lines, ...next].join('\n'))
}

async function runPsql(target: PsqlTarget, args: string[]): Promise<number> {
  const { connect } = await import('./connect.ts')
  const code = await connect(settings(), target, args)
  process.exitCode = code
  return code
}

function statusText(report: StatusReport, colors: boolean): string {
  const overview: [string, Cell][] = [
    ['home', report.home],
    ['answering', report.answering],
    ['platform API', report.api],
    ['sandbox API', report.sandbox],
    ['edge', report.edge],
    ['supervision', report.tree],
  ]
  const rows = report.services.map(({ name, state, pid, since }) => [name, state, pid, timeText(since)])
  const services = rows.length === 0 ? [] : ['', table(['SERVICE', 'STATE', 'PID', 'SINCE'], rows, colors)]
  return [block(overview, colors), ...services].join('\n')
}

function doctorText({ checks }: DoctorReport, colors: boolean): string {
  const rows = checks.map(({ level, name, found }) => [level, name, found])
  const remedies = checks
    .filter(({ level }) => level !== 'ok')
    .map(({ name, level, cost, fix }) => {
      return [`\n${level}: ${name}`, ...(cost ? [`  ${cost}`] : []), ...(fix ? [`  fix: ${fix}`] : [])].join('\n')
    })
  return [table(['LEVEL', 'CHECK', 'FOUND'], rows, colors), ...remedies].join('\n')
}

function configText(described: ReturnType<typeof describeConfig>, colors: boolean): string {
  const rows = described.map(({ name, value, set, about }) => [name, value, set ? 'environment' : 'default', about])
  return table(['SETTING', 'VALUE', 'FROM', 'ABOUT'], rows, colors)
}

function settings(): Config {
  try {
    return readConfig()
  } catch (error) {
    throw new Misuse((error as Error).message)
  }
}

function pointToHelp(command: Command, path: string): void {
  const runsProgram = command.registeredArguments.some((argument) => /^(command|arguments)$/.test(argument.name()))
  const hint = runsProgram ? 'Write -- before options of the program that is run. ' : ''
  command.showHelpAfterError(`${hint}"${path} --help" shows what is possible.`)
  if (command.commands.length > 0) command.helpCommand('help [command]', 'show help of a command')
  for (const each of command.commands) pointToHelp(each, `${path} ${each.name()}`)
}

async function main(): Promise<void> {
  const streams = openStreams()
  const program = buildProgram(streams)
  try {
    await program.parseAsync()
  } catch (error) {
    const code = report({ ...streams, json: wantsJson(program) }, error as Error)
    // What a failed start left open, such as connections, must not keep the process.
    process.exit(code)
  }
}

function openStreams(): Streams {
  // A reader that has seen enough, such as head, is no failure.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(exitCodes.done)
    throw error
  })
  return {
    colors: process.stdout.isTTY && process.stdout.hasColors(),
    print: (text) => process.stdout.write(`${text}\n`),
    note: (text) => process.stderr.write(`${text}\n`),
    ...(process.stdin.isTTY ? { ask } : {}),
  }
}

async function ask(question: string): Promise<string> {
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    return await terminal.question(question)
  } catch (error) {
    if ((error as Error).name !== 'AbortError') throw error
    process.stderr.write('\n') // Ctrl-C and Ctrl-D leave the cursor behind the question, and answer nothing
    return ''
  } finally {
    terminal.close()
  }
}

/** Says what went wrong and returns the exit code for it. */
function report(terminal: Terminal, error: Error): number {
  if (error instanceof CommanderError) return reportParser(terminal, error)
  const known = [Refusal, Misuse, Failure, Interruption].some((kind) => error instanceof kind)
  const sentence = known ? error.message : describeError(error)
  const details = error instanceof Failure ? error.details : []
  if (terminal.json) {
    const more = details.length > 0 ? { details } : {}
    terminal.note(JSON.stringify(error instanceof Refusal ? error.body : { error: sentence, ...more }))
  } else {
    terminal.note(`${error instanceof Interruption ? '' : 'error: '}${visible(sentence)}`)
    for (const line of details) terminal.note(visible(line))
  }
  if (error instanceof Interruption) return exitCodes.interrupted
  return error instanceof Misuse ? exitCodes.misused : exitCodes.refused
}

/** To people the parser has said its sentence already. Help that was asked for is no error. */
function reportParser(terminal: Terminal, error: CommanderError): number {
  if (error.exitCode === 0) return exitCodes.done
  const isIncomplete = error.code === 'commander.help'
  const sentence = isIncomplete ? 'a command is missing; --help lists them' : error.message.replace(/^error: /, '')
  if (terminal.json) terminal.note(JSON.stringify({ error: sentence.replaceAll('\n', ' ') }))
  return exitCodes.misused
}

if (import.meta.main) await main()
