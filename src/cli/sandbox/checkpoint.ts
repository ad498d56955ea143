import type { Command } from 'commander'
import type { Checkpoint, CheckpointEvent } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples } from '../command.ts'
import { CommandError } from '../errors.ts'
import { confirm, formatTime, printResult, sanitize, table } from '../output.ts'
import { startProgress } from '../progress.ts'
import { type SandboxCli, sandboxPath, withSandboxArgument } from './find.ts'

const tickMs = 1000

export function addCheckpointCommands(sandbox: Command, cli: SandboxCli): void {
  addChanges(sandbox, cli)

  const list = withSandboxArgument(sandbox.command('checkpoints'))
    .description('list the checkpoints of a sandbox, newest first')
    .option('-a, --all', 'include checkpoints that restores created automatically')
    .action((name: string, options: { all?: true }) => listCheckpoints(cli, name, options.all === true))
  addExamples(list, 'berth sandbox checkpoints demo', 'berth sandbox checkpoints demo --all --json')

  const remove = withSandboxArgument(sandbox.command('checkpoint-delete'))
    .description('delete a checkpoint')
    .argument('<checkpoint>', 'the id of the checkpoint, such as v1')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((name: string, id: string, options: { yes?: true }) => deleteCheckpoint(cli, name, id, options))
  addExamples(remove, 'berth sandbox checkpoint-delete demo v1')
}

function addChanges(sandbox: Command, cli: SandboxCli): void {
  const create = withSandboxArgument(sandbox.command('checkpoint'))
    .description('save the current files of a sandbox; programs keep running')
    .option('-m, --comment <text>', 'a description of the checkpoint')
    .action((name: string, options: { comment?: string }) =>
      followOperation(cli, `${sandboxPath(name)}/checkpoint`, { comment: options.comment }),
    )
  addExamples(create, 'berth sandbox checkpoint demo', 'berth sandbox checkpoint demo -m "before the upgrade"')

  const restore = withSandboxArgument(sandbox.command('restore'))
    .description('restore the files of a sandbox from a checkpoint; the current files are saved as a checkpoint first')
    .argument('<checkpoint>', 'the id of the checkpoint, such as v1')
    .option('-y, --yes', 'do not ask for confirmation')
    .action((name: string, id: string, options: { yes?: true }) => restoreCheckpoint(cli, name, id, options))
  addExamples(restore, 'berth sandbox restore demo v1', 'berth sandbox restore demo v1 --yes')
}

async function restoreCheckpoint(cli: SandboxCli, name: string, id: string, options: { yes?: true }): Promise<void> {
  const path = `${sandboxPath(name)}/checkpoints/${encodeSegment(id)}`
  const { create_time } = await request<Checkpoint>(cli.session(), 'GET', path)
  const question = `Restore sandbox ${name} to checkpoint ${id} of ${formatTime(create_time)}? All its programs are stopped.`
  if (!options.yes) await confirm(cli.terminal(), question)
  await followOperation(cli, `${path}/restore`)
}

/** Shows the progress of the operation and finally its result. */
async function followOperation(cli: SandboxCli, path: string, body?: object): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const { readEvents } = await import('../stream.ts')
  const progress = startProgress(terminal, cli.streams.errors)
  let status = ''
  let last: CheckpointEvent | undefined
  const timer = setInterval(() => status && progress.show(status), tickMs)
  try {
    for await (const event of readEvents<CheckpointEvent>(session, { method: 'POST', path, ...(body && { body }) })) {
      if (terminal.json) terminal.print(JSON.stringify(event))
      if (event.type === 'info') {
        status = sanitize(event.data ?? '')
        progress.show(status)
      }
      last = event
    }
  } finally {
    clearInterval(timer)
    progress.end()
  }
  if (last?.type === 'error') throw new CommandError(last.error ?? 'the operation failed')
  if (last?.type !== 'complete')
    throw new CommandError('the connection was lost; the operation continues on the platform')
  if (!terminal.json) terminal.print(`${sanitize(last.data ?? 'Done')}.`)
}

async function listCheckpoints(cli: SandboxCli, name: string, includeAuto: boolean): Promise<void> {
  const terminal = cli.terminal()
  const query = includeAuto ? '?includeAuto=true' : ''
  const checkpoints = await request<Checkpoint[]>(cli.session(), 'GET', `${sandboxPath(name)}/checkpoints${query}`)
  if (checkpoints.length === 0 && !terminal.json) {
    return terminal.note(`No checkpoints; "berth sandbox checkpoint ${sanitize(name)}" creates one.`)
  }
  const rows = checkpoints.map((each) => [each.id, formatTime(each.create_time), each.source_id, each.comment])
  printResult(terminal, checkpoints, () => table(['ID', 'CREATED', 'SOURCE', 'COMMENT'], rows, terminal.colors))
}

async function deleteCheckpoint(cli: SandboxCli, name: string, id: string, options: { yes?: true }): Promise<void> {
  const terminal = cli.terminal()
  if (!options.yes) await confirm(terminal, `Delete checkpoint ${id} of sandbox ${name}?`)
  const answer = await request(cli.session(), 'DELETE', `${sandboxPath(name)}/checkpoints/${encodeSegment(id)}`)
  printResult(terminal, answer, () => `Deleted checkpoint ${sanitize(id)}.`)
}
