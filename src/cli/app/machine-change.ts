import type { Command } from 'commander'
import { addExamples } from '../command.ts'
import { printResult, sanitize } from '../output.ts'
import { startProgress } from '../progress.ts'
import { withImage } from './machine-config.ts'
import { copyMachine } from './machine-copy.ts'
import { getMachine, type MachineConfig, waitForState } from './machine-find.ts'
import { rollOut } from './machine-roll.ts'
import { type ConfigOptions, readConfig, withConfigOptions } from './machine-run.ts'
import { type AppOptions, appName, type MachineCli, withAppOption } from './option.ts'

interface UpdateOptions extends AppOptions, ConfigOptions {
  image?: string
}

interface CloneOptions extends AppOptions {
  name?: string
  region?: string
}

const changeTimeoutSeconds = 300

export function addMachineChange(machines: Command, cli: MachineCli): void {
  const update = withConfigOptions(withAppOption(machines.command('update')))
    .description('change the configuration of a machine; settings not given stay as they are')
    .argument('<id>', 'the id of the machine')
    .argument('[command...]', 'the command it runs; write -- before it')
    .option('-i, --image <image>', 'a different image')
    .action((id: string, words: string[], options: UpdateOptions) => updateMachine(cli, id, words, options))
  addExamples(
    update,
    'berth machine update 1857156b526dd8 -a web --image nginx:1.29',
    'berth machine update 1857156b526dd8 -a web --vm-memory 1gb --env MODE=fast',
  )

  const clone = withAppOption(machines.command('clone'))
    .description('create a copy of a machine, with its own volumes')
    .argument('<id>', 'the id of the machine')
    .option('--name <name>', 'its name, unique in the app; generated when omitted')
    .option('-r, --region <code>', 'its region; defaults to that of the original')
    .action((id: string, options: CloneOptions) => cloneMachine(cli, id, options))
  addExamples(clone, 'berth machine clone 1857156b526dd8 -a web')
}

async function updateMachine(cli: MachineCli, id: string, words: string[], options: UpdateOptions): Promise<void> {
  const app = appName(options)
  const session = cli.session()
  const machine = await getMachine(session, app, id)
  const config = changedConfig(machine.config, readConfig(options, words), options.image)
  const progress = startProgress(cli.terminal(), cli.progress)
  await rollOut({ session, app, progress, waitSeconds: changeTimeoutSeconds }, [{ machine, config }])
  const updated = await getMachine(session, app, id)
  printResult(cli.terminal(), updated, () => `Updated machine ${id}; it is ${sanitize(updated.state)}.`)
}

export function changedConfig(
  before: MachineConfig,
  { guest, size, ...change }: Partial<MachineConfig>,
  image: string | undefined,
): MachineConfig {
  const { guest: guestBefore, ...rest } = before
  const changed = {
    ...rest,
    ...change,
    ...(change.env && { env: { ...before.env, ...change.env } }),
    ...(change.metadata && { metadata: { ...before.metadata, ...change.metadata } }),
    ...(change.init && { init: { ...before.init, ...change.init } }),
    ...(size !== undefined ? { size } : { guest: { ...keepGuest(guestBefore, guest), ...guest } }),
  }
  return image === undefined ? changed : withImage(changed, image)
}

/** Drops the previous memory when the number of CPUs changes, because it may not be valid with the new number. */
function keepGuest(before: MachineConfig['guest'] = {}, change: MachineConfig['guest'] = {}): MachineConfig['guest'] {
  const { memory_mb: _, ...rest } = before
  return change.cpus === undefined ? before : rest
}

async function cloneMachine(cli: MachineCli, id: string, options: CloneOptions): Promise<void> {
  const app = appName(options)
  const session = cli.session()
  const { name, region } = options
  const from = await getMachine(session, app, id)
  const progress = startProgress(cli.terminal(), cli.progress)
  const made = await copyMachine({ session, app, progress }, from, {
    ...(name !== undefined && { name }),
    ...(region !== undefined && { region }),
  })
  progress.show(`Machine ${made.id} is starting`)
  const machine = await waitForState(session, app, made, 'started', changeTimeoutSeconds).finally(() => progress.end())
  printResult(cli.terminal(), machine, () => `Machine ${made.id} (${sanitize(made.name)}) is started.`)
}
