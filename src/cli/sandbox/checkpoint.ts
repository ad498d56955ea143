import type { Command } from 'commander'
import type { Checkpoint, CheckpointEvent } from '../api-types.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples } from '../command.ts'
import { Failure } from '../failure.ts'
import { confirm, printAnswer, table, timeText, visible } from '../output.ts'
import { startProgress } from '../progress.ts'
import { type SandboxCli, sandboxPath, withSandboxArgument } from './find.ts'

const tickMs = 1000

export function addCheckpointCommands(sandbox: Command, cli: SandboxCli): void {
  addChanges(sandbox, cli)

  const list = withSandboxArgument(sandbox.command('checkpoints'))
    .description('list the checkpoints of a sandbox, newest first')
    .option('-a, --all', 'also those that restores made of what they replaced')
    .action((name: string, options: { all?: true }) => listCheckpoints(cli, name, options.all === true))
  addExamples(list, 'berth sandbox checkpoints demo', 'berth sandbox checkpoints demo --all --json')

  const remove = withSandboxArgument(sandbox.command('checkpoint-delete'))
    .description('delete a checkpoint')
    .argument('<checkpoint>', 'its id, such as v1')
    .option('-y, --yes', 'do not ask')
    .action((name: string, id: string, options: { yes?: true }) => deleteCheckpoint(cli, name, id, options))
  addExamples(remove, 'berth sandbox checkpoint-delete demo v1')
}

function addChanges(sandbox: Command, cli: SandboxCli): void {
  const create = withSandboxArgument(sandbox.command('checkpoint'))
    .description('keep the files of a sandbox as they are now; programs go on')
    .option('-m, --comment <text>', 'what it is for')
    .action((name: string, options: { comment?: string }) =>
      followOperation(cli, `${sandboxPath(name)}/checkpoint`, { comment: options.comment }),
    )
  addExamples(create, 'berth sandbox checkpoint demo', 'berth sandbox checkpoint demo -m "before the upgrade"')

  const restore = withSandboxArgument(sandbox.command('restore'))
    .description('put the files of a sandbox back to a checkpoint; what they replace is kept as a checkpoint too')
    .argument('<checkpoint>', 'its id, such as v1')
    .option('-y, --yes', 'do not ask')
    .action((name: string, id: string, options: { yes?: true }) => restoreCheckpoint(cli, name, id, options))
  addExamples(restore, 'berth sandbox restore demo v1', 'berth sandbox restore demo v1 --yes')
}

async function restoreCheckpoint(cli: SandboxCli, name: string, id: string, options: { yes?: true }): Promise<void> {
  const path = `${sandboxPath(name)}/checkpoints/${encodeSegment(id)}`
  const { create_time } = await request<Checkpoint>(cli.session(), 'GET', path)
  const question = `Put sandbox ${name} back to ${id} of ${timeText(create_time)}? Every program in it ends.`
  if (!options.yes) await confirm(cli.terminal(), question)
  await followOperation(cli, `${path}/restore`)
}

/** Shows how the work comes along, and at last what came of it. */
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
        status = visible(event.data ?? '')
        progress.show(status)
      }
      last = event
    }
  } finally {
    clearInterval(timer)
    progress.end()
  }
  if (last?.type === 'error') throw new Failure(last.error ?? 'it failed')
  if (last?.type !== 'complete') throw new Failure('the connection was lost; the platform goes on with it')
  if (!terminal.json) terminal.print(`${visible(last.data ?? 'Done')}.`)
}

async function listCheckpoints(cli: SandboxCli, name: string, includeAuto: boolean): Promise<void> {
  const terminal = cli.terminal()
  const query = includeAuto ? '?includeAuto=true' : ''
  const checkpoints = await request<Checkpoint[]>(cli.session(), 'GET', `${sandboxPath(name)}/checkpoints${query}`)
  if (checkpoints.length === 0 && !terminal.json) {
    return terminal.note(`No checkpoints; "berth sandbox checkpoint ${visible(name)}" makes one.`)
  }
  const rows = checkpoints.map((each) => [each.id, timeText(each.create_time), each.source_id, each.comment])
  printAnswer(terminal, checkpoints, () => table(['ID', 'CREATED', 'CAME FROM', 'COMMENT'], rows, terminal.colors))
}

async function deleteCheckpoint(cli: SandboxCli, name: string, id: string, options: { yes?: true }): Promise<void> {
  const terminal = cli.terminal()
  if (!options.yes) await confirm(terminal, `Delete checkpoint ${id} of sandbox ${name}?`)
  const answer = await request(cli.session(), 'DELETE', `${sandboxPath(name)}/checkpoints/${encodeSegment(id)}`)
  printAnswer(terminal, answer, () => `Deleted checkpoint ${visible(id)}.`)
}
