import type { Command } from 'commander'
import type { ChangedSecrets, SecretList } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { UsageError } from '../errors.ts'
import { formatCount, formatTime, printResult, sanitize, table } from '../output.ts'
import { startProgress } from '../progress.ts'
import { listMachines } from './machine-find.ts'
import { rollOut } from './machine-roll.ts'
import { type AppOptions, appName, appPath, type MachineCli, withAppOption } from './option.ts'

type SecretCli = Omit<MachineCli, 'setExitCode'>

interface SetOptions extends AppOptions {
  stage?: true
}

const rollOutTimeoutSeconds = 300

export function addSecretCommands(program: Command, cli: SecretCli): void {
  const secrets = program
    .command('secrets')
    .alias('secret')
    .description('secret environment variables of the machines of an app')
  addExamples(secrets, 'berth secrets set API_KEY=abc -a web', 'berth secrets list -a web')

  const stage = 'do not update running machines; the change takes effect with the next deployment'
  const set = withAppOption(secrets.command('set'))
    .description('set secrets and update the machines one after another')
    .argument('<NAME=VALUE...>', 'NAME=- reads the value from standard input')
    .option('--stage', stage)
    .action((pairs: string[], options: SetOptions) => setSecrets(cli, pairs, options))
  addExamples(set, 'berth secrets set API_KEY=abc -a web', 'berth secrets set TLS_KEY=- -a web < key.pem')

  const load = withAppOption(secrets.command('import'))
    .description('set secrets from NAME=VALUE lines on standard input')
    .option('--stage', stage)
    .action((options: SetOptions) => importSecrets(cli, options))
  addExamples(load, 'berth secrets import -a web < .env')

  const unset = withAppOption(secrets.command('unset'))
    .description('remove secrets and update the machines one after another')
    .argument('<NAME...>', 'their names')
    .option('--stage', stage)
    .action((names: string[], options: SetOptions) => changeSecrets(cli, removed(names), options))
  addExamples(unset, 'berth secrets unset API_KEY -a web')

  const list = withAppOption(secrets.command('list').alias('ls'))
    .description('list the names and digests of secrets')
    .action((options: AppOptions) => listSecrets(cli, options))
  addExamples(list, 'berth secrets list -a web')

  const deploy = withAppOption(secrets.command('deploy'))
    .description('update the machines with the current secrets, one after another')
    .action((options: AppOptions) => deploySecrets(cli, options))
  addExamples(deploy, 'berth secrets deploy -a web')
}

const removed = (names: string[]) => Object.fromEntries(names.map((name) => [name, null]))

async function setSecrets(cli: SecretCli, pairs: string[], options: SetOptions): Promise<void> {
  const entries = pairs.map((pair): [string, string] => {
    const at = pair.indexOf('=')
    // Without a name the text may be a secret value, so it is not repeated in the error message.
    if (at < 1) throw new UsageError(`secrets must be of the form NAME=VALUE; "${at < 0 ? pair : '='}" is not`)
    return [pair.slice(0, at), pair.slice(at + 1)]
  })
  const fromInput = entries.filter(([, value]) => value === '-')
  if (fromInput.length > 1) throw new UsageError('only one value can come from standard input')
  for (const entry of fromInput) entry[1] = (await cli.readInput()).replace(/\n$/, '')
  await changeSecrets(cli, Object.fromEntries(entries), options)
}

async function importSecrets(cli: SecretCli, options: SetOptions): Promise<void> {
  await changeSecrets(cli, parseVariables(await cli.readInput()), options)
}

/** Reads NAME=VALUE lines. Values may be quoted; in triple quotes they may span lines. */
export function parseVariables(text: string): Record<string, string> {
  const values = new Map<string, string>()
  const lines = text.split('\n')
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i]!.replace(/^\s*export\s+/, '').trimStart()
    if (line === '' || line.startsWith('#')) continue
    const match = /^([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)$/s.exec(line)
    if (!match) throw new UsageError(`line ${i + 1} is not of the form NAME=VALUE`)
    const [, name, value] = match as unknown as [string, string, string]
    if (!value.startsWith('"""')) {
      const trimmed = value.trimEnd()
      values.set(name, /^(["'])(.*)\1$/s.exec(trimmed)?.[2] ?? trimmed)
      continue
    }
    const begin = i
    let whole = value.slice(3).replace(/\r$/, '')
    while (!whole.trimEnd().endsWith('"""')) {
      if (++i >= lines.length) throw new UsageError(`line ${begin + 1}: the closing """ is missing`)
      whole += `\n${lines[i]!.replace(/\r$/, '')}`
    }
    values.set(name, whole.trimEnd().slice(0, -3))
  }
  return Object.fromEntries(values)
}

async function changeSecrets(
  cli: SecretCli,
  values: Record<string, string | null>,
  options: SetOptions,
): Promise<void> {
  const names = Object.keys(values)
  if (names.length === 0) throw new UsageError('no secrets were given')
  const answer = await request<ChangedSecrets>(cli.session(), 'POST', `${appPath(options)}/secrets`, { values })
  const updated = options.stage ? 0 : await updateMachines(cli, options)
  const what = formatCount(names.length, 'secret')
  const then = updated > 0 ? ` and updated ${formatCount(updated, 'machine')}` : ''
  printResult(cli.terminal(), answer, () => `Changed ${what} of app ${sanitize(appName(options))}${then}.`)
}

/** Updates the running machines. A stopped machine gets the secrets with its next update. */
async function updateMachines(cli: SecretCli, options: AppOptions): Promise<number> {
  const session = cli.session()
  const app = appName(options)
  const machines = (await listMachines(session, app)).filter(({ state }) => state === 'started')
  const progress = startProgress(cli.terminal(), cli.progress)
  const changes = machines.map((machine) => ({ machine, config: machine.config }))
  await rollOut({ session, app, progress, waitSeconds: rollOutTimeoutSeconds }, changes)
  return machines.length
}

async function listSecrets(cli: Cli, options: AppOptions): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<SecretList>(cli.session(), 'GET', `${appPath(options)}/secrets`)
  if (answer.secrets.length === 0 && !terminal.json) {
    return terminal.note(`App ${sanitize(appName(options))} has no secrets; "berth secrets set NAME=VALUE" sets one.`)
  }
  const rows = answer.secrets.map(({ name, digest, updated_at }) => [name, digest, formatTime(updated_at)])
  printResult(terminal, answer, () => table(['NAME', 'DIGEST', 'CHANGED'], rows, terminal.colors))
}

async function deploySecrets(cli: SecretCli, options: AppOptions): Promise<void> {
  const updated = await updateMachines(cli, options)
  printResult(cli.terminal(), { updated }, () => `Updated ${formatCount(updated, 'machine')}.`)
}
