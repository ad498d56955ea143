import type { Command } from 'commander'
import type { MachineProcess } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { printResult, sanitize, table } from '../output.ts'
import { machinePath } from './machine-find.ts'
import { type AppOptions, appName, withAppOption } from './option.ts'

export function addMachineProcess(machines: Command, cli: Cli): void {
  const processes = withAppOption(machines.command('ps'))
    .description('list the processes of a machine')
    .argument('<id>', 'the id of the machine')
    .action((id: string, options: AppOptions) => listProcesses(cli, id, options))
  addExamples(processes, 'berth machine ps 1857156b526dd8 -a web', 'berth machine ps 1857156b526dd8 -a web --json')

  const signal = withAppOption(machines.command('signal').alias('kill'))
    .description('send a signal to the program of a machine')
    .argument('<id>', 'the id of the machine')
    .argument('<signal>', 'its name or number, such as SIGHUP')
    .action((id: string, name: string, options: AppOptions) => sendSignal(cli, id, name, options))
  addExamples(signal, 'berth machine signal 1857156b526dd8 SIGHUP -a web')
}

async function listProcesses(cli: Cli, id: string, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const path = `${machinePath(appName(options), id)}/ps`
  const processes = await request<MachineProcess[]>(cli.session(), 'GET', path)
  const rows = processes.map((one) => [
    one.pid,
    formatBytes(one.rss),
    `${Math.floor(one.rtime / 1000)} s`,
    one.listen_sockets.map(({ proto, address }) => `${proto} ${address}`).join(', '),
    one.command,
  ])
  printResult(terminal, processes, () =>
    table(['PID', 'MEMORY', 'AGE', 'LISTENS ON', 'COMMAND'], rows, terminal.colors),
  )
}

async function sendSignal(cli: Cli, id: string, name: string, options: AppOptions): Promise<void> {
  const signal = /^\d+$/.test(name) ? Number(name) : name
  const answer = await request(cli.session(), 'POST', `${machinePath(appName(options), id)}/signal`, { signal })
  printResult(cli.terminal(), answer, () => `Sent ${sanitize(name)} to machine ${sanitize(id)}.`)
}
