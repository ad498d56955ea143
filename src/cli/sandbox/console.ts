import type { Command } from 'commander'
import type { ExecSessionList } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'
import { collect } from '../option.ts'
import { formatTime, printResult, sanitize, table } from '../output.ts'
import { commandPath, exitCodeOf } from './exec.ts'
import { type SandboxCli, sandboxPath, withSandboxArgument } from './find.ts'
import type { Outcome } from './session.ts'

interface ConsoleOptions {
  attach?: string
  dir?: string
  env?: string[]
}

/** Login shells in order of preference. */
const shells = [
  ['bash', '-l'],
  ['sh', '-l'],
]
const commandNotFoundCode = 127

export function addConsoleCommands(sandbox: Command, cli: SandboxCli): void {
  const console = withSandboxArgument(sandbox.command('console'))
    .description('open a terminal in a sandbox')
    .argument('[command...]', 'the program and its arguments; defaults to a login shell; write -- before them')
    .option('--attach <session>', 'attach to a running session')
    .option('--dir <path>', 'working directory; /home/sprite when omitted')
    .option('--env <NAME=value>', 'an environment variable; may be given several times', collect)
    .action((name: string, words: string[], options: ConsoleOptions) => openConsole(cli, name, words, options))
  console.addHelpText(
    'after',
    `
Ctrl-\\ detaches and leaves the session running; "berth sandbox sessions" lists running sessions, and --attach returns
to one. A session also survives a lost connection and a restart of the control plane. It ends with its program, with
--kill, with its sandbox, or with "berth down".`,
  )
  addExamples(
    console,
    'berth sandbox console demo',
    'berth sandbox console demo -- python3 -i',
    'berth sandbox console demo --attach 4711',
  )

  const sessions = withSandboxArgument(sandbox.command('sessions'))
    .description('list the running sessions of a sandbox, or end one')
    .option('--kill <session>', 'end this session with SIGTERM, and with SIGKILL after 10 seconds')
    .option('--signal <name>', 'the signal to send with --kill instead of SIGTERM')
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
    throw new UsageError('the console needs a terminal; use "berth sandbox exec" without one')
  }
  if (options.attach !== undefined && words.length > 0) {
    throw new UsageError('--attach cannot be combined with a command; the session already runs one')
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
  // If input was sent, the shell existed, and the exit code is its own.
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
    `\r\nSession ${sanitize(id)} keeps running. Return with: berth sandbox console ${sanitize(name)} --attach ${sanitize(id)}\n`,
  )
}

async function listSessions(cli: SandboxCli, name: string): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<ExecSessionList>(cli.session(), 'GET', `${sandboxPath(name)}/exec`)
  if (answer.sessions.length === 0 && !terminal.json) return terminal.note('No sessions are running.')
  const rows = answer.sessions.map((session) => [
    session.id,
    session.tty ? 'terminal' : 'pipes',
    session.is_active ? 'active' : 'idle',
    formatTime(session.created),
    session.command,
  ])
  printResult(terminal, answer, () => table(['SESSION', 'KIND', 'STATE', 'SINCE', 'COMMAND'], rows, terminal.colors))
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
    else if (event.message !== undefined) terminal.note(sanitize(event.message))
    last = event
  }
  if (last?.type !== 'complete')
    throw new CommandError(`the connection was lost before session ${id} was reported as ended`)
  if (!terminal.json) terminal.print(`Session ${sanitize(id)} exited with code ${last.exit_code}.`)
}
