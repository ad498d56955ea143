import type { Command } from 'commander'
import type { ExecSessionList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples } from '../command.ts'
import { Failure, Misuse } from '../failure.ts'
import { collect } from '../option.ts'
import { printAnswer, table, timeText, visible } from '../output.ts'
import { commandPath, exitCodeOf } from './exec.ts'
import { type SandboxCli, sandboxPath, withSandboxArgument } from './find.ts'
import type { Outcome } from './session.ts'

interface ConsoleOptions {
  attach?: string
  dir?: string
  env?: string[]
}

/** The first one that the sandbox has. */
const shells = [
  ['bash', '-l'],
  ['sh', '-l'],
]
const commandNotFoundCode = 127

export function addConsoleCommands(sandbox: Command, cli: SandboxCli): void {
  const console = withSandboxArgument(sandbox.command('console'))
    .description('open a terminal in a sandbox')
    .argument('[command...]', 'the program and its arguments, a login shell when omitted; write -- before them')
    .option('--attach <session>', 'return to a session that runs')
    .option('--dir <path>', 'where it starts; /home/sprite when omitted')
    .option('--env <NAME=value>', 'a variable for it; may be given several times', collect)
    .action((name: string, words: string[], options: ConsoleOptions) => openConsole(cli, name, words, options))
  console.addHelpText(
    'after',
    `
Ctrl-\\ leaves the session running; "berth sandbox sessions" lists those that run, and --attach returns to one. A session
also goes on when the connection is lost. It ends with its program, with --kill, or with the platform.`,
  )
  addExamples(
    console,
    'berth sandbox console demo',
    'berth sandbox console demo -- python3 -i',
    'berth sandbox console demo --attach 4711',
  )

  const sessions = withSandboxArgument(sandbox.command('sessions'))
    .description('list the commands that run in a sandbox, or end one')
    .option('--kill <session>', 'end this one: SIGTERM, and SIGKILL after 10 seconds')
    .option('--signal <name>', 'with --kill: this signal instead of SIGTERM')
    .action((name: string, options: { kill?: string; signal?: string }) =>
      options.kill === undefined ? listSessions(cli, name) : killSession(cli, name, options.kill, options.signal),
    )
  addExamples(
    sessions,
    'berth sandbox sessions demo',
    'berth sandbox sessions demo --kill 4711',
    'berth sandbox sessions demo --kill 4711 --signal HUP',
  )
}

async function openConsole(cli: SandboxCli, name: string, words: string[], options: ConsoleOptions): Promise<void> {
  const { streams } = cli
  if (!streams.input.isTTY || !streams.output.isTTY) {
    throw new Misuse('a console needs a terminal; without one use "berth sandbox exec"')
  }
  if (options.attach !== undefined && words.length > 0) {
    throw new Misuse('a session that runs has its command already; write none with --attach')
  }
  const outcome =
    options.attach === undefined ? await startSession(cli, name, words, options) : await attach(cli, name, options)
  reportOutcome(cli, name, outcome)
}

function attach(cli: SandboxCli, name: string, { attach }: ConsoleOptions): Promise<Outcome> {
  return joinSession(cli, `${sandboxPath(name)}/exec/${encodeSegment(attach!)}`)
}

async function startSession(cli: SandboxCli, name: string, words: string[], options: ConsoleOptions): Promise<Outcome> {
  const run = (argv: string[]) =>
    joinSession(cli, commandPath(name, argv, cli.streams, { ...options, tty: true, stdin: true }))
  if (words.length > 0) return run(words)
  const [preferred, fallback] = shells
  const outcome = await run(preferred!)
  // A shell to which somebody typed was there, whatever it ended with.
  const isMissing = outcome.is === 'ended' && outcome.code === commandNotFoundCode && !outcome.hasSentInput
  return isMissing ? run(fallback!) : outcome
}

async function joinSession(cli: SandboxCli, path: string): Promise<Outcome> {
  const session = cli.session()
  const { runSession } = await import('./session.ts')
  return runSession(session, path, { streams: cli.streams, takesInput: true, canDetach: true })
}

function reportOutcome(cli: SandboxCli, name: string, outcome: Outcome): void {
  cli.setExitCode(exitCodeOf(outcome))
  if (outcome.is === 'ended') return
  const id = outcome.id
  cli.streams.errors.write(
    `\r\nSession ${visible(id)} goes on. Return with: berth sandbox console ${visible(name)} --attach ${visible(id)}\n`,
  )
}

async function listSessions(cli: SandboxCli, name: string): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<ExecSessionList>(cli.session(), 'GET', `${sandboxPath(name)}/exec`)
  if (answer.sessions.length === 0 && !terminal.json) return terminal.note('No commands run.')
  const rows = answer.sessions.map((session) => [
    session.id,
    session.tty ? 'terminal' : 'pipes',
    session.is_active ? 'active' : 'quiet',
    timeText(session.created),
    session.command,
  ])
  printAnswer(terminal, answer, () => table(['SESSION', 'KIND', 'STATE', 'SINCE', 'COMMAND'], rows, terminal.colors))
}

interface KillEvent {
  type: string
  message?: string
  exit_code?: number
}

async function killSession(cli: SandboxCli, name: string, id: string, signal: string | undefined): Promise<void> {
  const terminal = cli.terminal()
  const { readEvents } = await import('../stream.ts')
  const query = signal === undefined ? '' : `?${new URLSearchParams({ signal })}`
  const path = `${sandboxPath(name)}/exec/${encodeSegment(id)}/kill${query}`
  let last: KillEvent | undefined
  for await (const event of readEvents<KillEvent>(cli.session(), { method: 'POST', path })) {
    if (terminal.json) terminal.print(JSON.stringify(event))
    else if (event.message !== undefined) terminal.note(visible(event.message))
    last = event
  }
  if (last?.type !== 'complete') throw new Failure(`it is not known whether session ${id} has ended`)
  if (!terminal.json) terminal.print(`Session ${visible(id)} ended with code ${last.exit_code}.`)
}
