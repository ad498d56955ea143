// Entry point of the command line. Commands import their code when they run, so that help and completion stay fast.
import { createInterface } from 'node:readline/promises'
import { Command } from 'commander'
import { addOrgCommands } from '../cli/account/org.ts'
import { addQuotaCommands } from '../cli/account/quota.ts'
import { addTokenCommands } from '../cli/account/token.ts'
import { addAppCommands } from '../cli/app/app.ts'
import { addCertificateCommands } from '../cli/app/certificate.ts'
import { addDeployCommand } from '../cli/app/deploy.ts'
import { addIpCommands } from '../cli/app/ip.ts'
import { addMachineCommands } from '../cli/app/machine.ts'
import { addLogsCommand } from '../cli/app/machine-log.ts'
import type { MachineCli } from '../cli/app/option.ts'
import { addReleaseCommands } from '../cli/app/release-command.ts'
import { addScaleCommands } from '../cli/app/scale.ts'
import { addSecretCommands } from '../cli/app/secret.ts'
import { addVolumeCommands } from '../cli/app/volume.ts'
import { addExamples, type Cli } from '../cli/command.ts'
import { addCompletionCommand } from '../cli/completion.ts'
import type { Terminal } from '../cli/output.ts'
import { addPostgresCommands } from '../cli/postgres/commands.ts'
import type { PsqlTarget } from '../cli/postgres/connect.ts'
import { addSandboxCommands } from '../cli/sandbox/commands.ts'
import { exitCodes, reportError } from './error-report.ts'
import { addInspectionCommands, addLifecycleCommands, getConfig } from './platform-command.ts'
import { openSandboxSession, openSession } from './session.ts'
import { addStorageCommands } from './storage-command.ts'
import { version } from './version.ts'

type Streams = Omit<Terminal, 'json'>

export function buildProgram(streams: Streams): Command {
  const program = new Command('berth')
    .description('Berth: apps, managed Postgres and sandboxes on your own machine.')
    .version(version, '-v, --version', 'print the version')
    .option('--json', 'print the response of the platform as JSON')
    .option('--url <url>', 'URL of the platform; default: BERTH_URL, else the platform of the local home')
    .helpOption('-h, --help', 'show help')
    .configureHelp({ showGlobalOptions: true })
    .exitOverride()
    .configureOutput({ writeErr: (text) => wantsJson(program) || process.stderr.write(text) })
    .addHelpText(
      'after',
      `
The token is read from BERTH_TOKEN, else from the local home. "berth config" shows all settings.
Exit codes: 0 success, 1 refused or failed, 2 usage error, 130 interrupted.`,
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
    session: () => openSession(getConfig(), program.opts<{ url?: string }>().url),
    terminal: () => ({ ...streams, json: wantsJson(program) }),
  }
  const standardStreams = { input: process.stdin, output: process.stdout, errors: process.stderr }
  const machineCli: MachineCli = { ...cli, progress: process.stderr, readInput, setExitCode }
  program.commandsGroup('Apps:')
  addAppCommands(program, machineCli)
  addDeployCommand(program, machineCli)
  addReleaseCommands(program, machineCli)
  addMachineCommands(program, { ...machineCli, streams: standardStreams })
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
    session: () => openSandboxSession(getConfig(), program.opts<{ url?: string }>().url),
    streams: standardStreams,
    setExitCode,
  })
  addOrgCommands(program, cli)
  addQuotaCommands(program, cli)
  addTokenCommands(program, cli)
  program.commandsGroup('Platform:')
  addLifecycleCommands(program, cli)
  addInspectionCommands(program, cli)
  addStorageCommands(program, cli)
  program.commandsGroup('Command line:')
  addCompletionCommand(program, cli)
  addHelpHints(program, 'berth')
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

async function runPsql(target: PsqlTarget, args: string[]): Promise<number> {
  const { connect } = await import('./connect.ts')
  const code = await connect(getConfig(), target, args)
  process.exitCode = code
  return code
}

function addHelpHints(command: Command, path: string): void {
  const runsProgram = command.registeredArguments.some((argument) => /^(command|arguments)$/.test(argument.name()))
  const hint = runsProgram ? 'Write -- before options of the program to run. ' : ''
  command.showHelpAfterError(`${hint}Run "${path} --help" for usage.`)
  if (command.commands.length > 0) command.helpCommand('help [command]', 'show help of a command')
  for (const each of command.commands) addHelpHints(each, `${path} ${each.name()}`)
}

async function main(): Promise<void> {
  const streams = openStreams()
  const program = buildProgram(streams)
  try {
    await program.parseAsync()
  } catch (error) {
    const code = reportError({ ...streams, json: wantsJson(program) }, error as Error)
    // Exit explicitly: connections that a failed command left open would keep the process running.
    process.exit(code)
  }
}

function openStreams(): Streams {
  // A reader that closes the pipe early, such as head, is not an error.
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
    process.stderr.write('\n') // after Ctrl-C or Ctrl-D the cursor is still on the line of the question
    return ''
  } finally {
    terminal.close()
  }
}

if (import.meta.main) await main()
