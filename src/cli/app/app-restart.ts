import type { Command } from 'commander'
import { request } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { parseWholeNumber } from '../option.ts'
import { formatCount, printResult, sanitize } from '../output.ts'
import { startProgress } from '../progress.ts'
import { listMachines, machinePath } from './machine-find.ts'
import { formatPosition, type Rollout, underLease, waitUntilUp, withLastLogLines } from './machine-roll.ts'

interface RestartOptions {
  waitTimeout: number
}

export function addAppRestart(apps: Command, cli: ProgressCli): void {
  const restart = apps
    .command('restart')
    .description('restart the machines of an app that are started, one after another; each must pass its checks first')
    .argument('<name>', 'the name of the app')
    .option('--wait-timeout <seconds>', 'timeout for each machine', parseWholeNumber, 300)
    .action((name: string, options: RestartOptions) => restartApp(cli, name, options))
  addExamples(restart, 'berth apps restart demo', 'berth apps restart demo --json')
}

async function restartApp(cli: ProgressCli, app: string, { waitTimeout }: RestartOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const started = (await listMachines(session, app)).filter(({ state }) => state === 'started')
  const progress = startProgress(terminal, cli.progress)
  const rollout: Rollout = { session, app, progress, waitSeconds: waitTimeout }
  try {
    for (const [index, { id }] of started.entries()) {
      progress.show(`Restarting machine ${id}${formatPosition(index + 1, started.length)}`)
      await restartMachine(rollout, id)
    }
  } finally {
    progress.end()
  }
  const restarted = started.map(({ id }) => id)
  const text = `Restarted ${formatCount(restarted.length, 'machine')} of app ${sanitize(app)}.`
  printResult(terminal, { app, restarted }, () => text)
}

async function restartMachine(rollout: Rollout, id: string): Promise<void> {
  await underLease(rollout.session, machinePath(rollout.app, id), async (path, nonce) => {
    await request(rollout.session, 'POST', `${path}/restart`, {}, nonce)
    await withLastLogLines(rollout, id, () => waitUntilUp(rollout, id))
  })
}
