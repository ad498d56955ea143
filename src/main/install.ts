// Two systemd units: the supervision tree, in which every workload lives, and the control plane, which may be restarted
// and upgraded without a workload noticing.
import { randomBytes } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readTextIfPresent } from '../drivers/host/file.ts'
import { openHome } from '../drivers/host/home.ts'
import { baseEnvironment, findCommand, isRoot } from '../drivers/host/process.ts'
import { type Config, describeConfig } from './config.ts'
import { settings } from './setting.ts'

export interface InstallOptions {
  /** Return the texts of the units and write nothing. */
  print: boolean
  /** Where the units go; the place where systemd looks when absent. */
  directory?: string
  /** The settings to carry over; those of this process when absent. */
  environment?: Record<string, string | undefined>
}

/** What makes the written units run. */
export const nextCommands: string[] = isRoot()
  ? ['systemctl daemon-reload', 'systemctl enable --now berth-tree berth']
  : ['systemctl --user daemon-reload', 'systemctl --user enable --now berth-tree berth', 'loginctl enable-linger']

interface Unit {
  file: string
  text: string
}

/** Returns the paths of what was written, or with `print` the texts. */
export async function install(config: Config, options: InstallOptions): Promise<string[]> {
  const directory = options.directory === undefined ? unitDirectory() : resolve(options.directory)
  if (options.print) return renderUnits(config, directory, options).map(({ file, text }) => `# ${file}\n${text}`)
  if (options.directory === undefined) refuseWithoutSystemd()
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const units = renderUnits({ ...config, home: home.path }, directory, options)
  mkdirSync(directory, { recursive: true })
  for (const unit of units) refuseOtherHome(unit, home.path)
  const secrets = renderSecrets(config, options)
  const environmentFile = `${home.path}/environment`
  // Without secrets among the settings an existing file stays as somebody left it.
  if (secrets !== '') writeWhole(environmentFile, secrets, 0o600)
  for (const { file, text } of units) writeWhole(file, text, 0o644)
  return [...units.map(({ file }) => file), ...(secrets === '' ? [] : [environmentFile])]
}

function unitDirectory(): string {
  return isRoot() ? '/etc/systemd/system' : `${homedir()}/.config/systemd/user`
}

function refuseWithoutSystemd(): void {
  if (existsSync('/run/systemd/system')) return
  throw new Error(
    'systemd does not run on this machine: start the platform with "berth up", or write the units elsewhere with --directory',
  )
}

function refuseOtherHome({ file }: Unit, home: string): void {
  const line = readTextIfPresent(file)?.match(/^Environment="?BERTH_HOME=.*$/m)?.[0]
  if (line === undefined || line === renderVariable('BERTH_HOME', home)) return
  throw new Error(
    `${file} is for another home (${line}): remove it first, or write the units elsewhere with --directory`,
  )
}

function writeWhole(file: string, text: string, mode: number): void {
  const fresh = `${file}.${randomBytes(6).toString('hex')}`
  writeFileSync(fresh, text, { mode, flag: 'wx' })
  chmodSync(fresh, mode)
  renameSync(fresh, file)
}

function renderUnits(config: Config, directory: string, options: InstallOptions): Unit[] {
  return [
    { file: `${directory}/berth-tree.service`, text: renderTree(config) },
    { file: `${directory}/berth.service`, text: renderControlPlane(config, options) },
  ]
}

const launcher = fileURLToPath(new URL('../../berth', import.meta.url))

// As the platform starts it: a bound for the table of services, which is only memory for pointers.
const maxServices = 20_000

function renderTree(config: Config): string {
  const tree = `${config.home}/tree`
  const program = (name: string) => findCommand(name) ?? `/usr/bin/${name}`
  const control = program('s6-svscanctl')
  return renderUnit({
    Unit: [
      'Description=Berth: everything the platform runs',
      `RequiresMountsFor=${quote(config.home)}`,
      ...networkOrder(),
    ],
    Service: [
      'Type=exec',
      'WorkingDirectory=/',
      ...Object.entries({ ...baseEnvironment, BERTH_HOME: config.home, BERTH_UID_BASE: String(config.uidBase) }).map(
        ([name, value]) => renderVariable(name, value),
      ),
      comment('A tree that was started by hand ends in order, and what ran in it comes back in this one.'),
      command('ExecStartPre', '/bin/sh', '-c', endOtherTree, 'end-other-tree', control, tree, launcher),
      command('ExecStart', program('s6-svscan'), '-c', String(maxServices), tree),
      comment('The control plane starts a tree of its own when none answers, so it is let go only when this one does.'),
      command('ExecStartPost', '/bin/sh', '-c', waitForTree, 'wait-for-tree', control, tree),
      command('ExecStop', launcher, 'down'),
      comment(
        'Workloads outlive a crash of s6-svscan, which comes back to them. "berth down" ends them all, in order.',
      ),
      'KillMode=process',
      comment('Above the 40 s that "berth down" gives workloads before and after SIGKILL.'),
      'TimeoutSec=60',
      comment('Not "always": after "berth down" by hand it stays down.'),
      'Restart=on-failure',
      'RestartSec=100ms',
      comment(
        'Workloads have groups of their own below this one, and one out of memory is no reason to stop the others.',
      ),
      'Delegate=yes',
      'OOMPolicy=continue',
      'TasksMax=infinity',
      ...limits,
    ],
    Install: [`WantedBy=${bootTarget()}`],
  })
}

const endOtherTree = 'if "$1" -a "$2" 2>/dev/null; then exec "$3" down; fi'
const waitForTree = 'until "$1" -a "$2" 2>/dev/null; do sleep 0.05; done'

function renderControlPlane(config: Config, options: InstallOptions): string {
  return renderUnit({
    Unit: [
      'Description=Berth: control plane',
      'Requires=berth-tree.service',
      'After=berth-tree.service',
      ...networkOrder(),
      comment('A state database or an address may be away for longer than a few attempts.'),
      'StartLimitIntervalSec=0',
    ],
    Service: [
      'Type=exec',
      'WorkingDirectory=/',
      ...listVariables(config, options).map(([name, value]) => renderVariable(name, value)),
      `EnvironmentFile=-${escapeSpecifiers(`${config.home}/environment`)}`,
      command('ExecStart', launcher, 'up'),
      comment('The control plane ends its own affairs; what it leaves behind are helpers, which go at once.'),
      'KillMode=mixed',
      'TimeoutStopSec=30',
      'Restart=always',
      'RestartSec=1',
      'TasksMax=infinity',
      ...limits,
    ],
    Install: [`WantedBy=${bootTarget()}`],
  })
}

// Restrictions that give a unit its own view of the file system would hide from workloads what the control plane mounts
// for them, and those on system calls would reach into sandboxes. What stays is what no workload may do to the machine.
// The manager of an ordinary user can take nothing away.
const limits = [
  'LimitNOFILE=1048576',
  ...(isRoot() ? ['CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_TIME CAP_WAKE_ALARM'] : []),
]

function networkOrder(): string[] {
  // The manager of an ordinary user does not know the network.
  return isRoot() ? ['Wants=network-online.target', 'After=network-online.target'] : []
}

function bootTarget(): string {
  return isRoot() ? 'multi-user.target' : 'default.target'
}

/** Every setting that is set and not secret. Paths are absolute, because the units run elsewhere. */
function listVariables(config: Config, { environment }: InstallOptions): [string, string][] {
  const paths: Record<string, string | undefined> = {
    BERTH_TLS_CERT: config.tls?.certFile,
    BERTH_TLS_KEY: config.tls?.keyFile,
    BERTH_PG16_BIN: config.pgBins[16],
    BERTH_PG17_BIN: config.pgBins[17],
    BERTH_REPOSITORY: config.repository,
  }
  const given = describeConfig(environment).filter(({ name, set }) => set && name !== 'BERTH_HOME' && !isSecret(name))
  return [
    ['BERTH_HOME', config.home],
    ...given.map(({ name, value }): [string, string] => [name, paths[name] ?? value]),
  ]
}

function isSecret(name: string): boolean {
  return settings.some((setting) => setting.name === name && setting.secret)
}

/** Lines for the file that only its owner can read; units are readable by everybody. */
function renderSecrets(config: Config, { environment }: InstallOptions): string {
  const values: Record<string, string | undefined> = {
    BERTH_TOKEN: config.token,
    BERTH_DATABASE_URL: config.databaseUrl,
  }
  const lines = describeConfig(environment)
    .filter(({ name, set }) => set && isSecret(name))
    .map(({ name }) => {
      const value = values[name]
      if (value === undefined) throw new Error(`${name} cannot be carried over into the units`)
      return `${name}="${value.replaceAll(/["\\$`]/g, '\\$&')}"\n`
    })
  return lines.join('')
}

function renderUnit(sections: Record<string, string[]>): string {
  return Object.entries(sections)
    .map(([name, lines]) => [`[${name}]`, ...lines, ''].join('\n'))
    .join('\n')
}

function comment(text: string): string {
  return `# ${text}`
}

function renderVariable(name: string, value: string): string {
  return `Environment=${quote(`${name}=${value}`)}`
}

// Arguments are searched for variables, the program is not.
function command(key: string, program: string, ...args: string[]): string {
  return `${key}=${[quote(program), ...args.map((arg) => quote(arg.replaceAll('$', '$$$$')))].join(' ')}`
}

/** A word as systemd reads it: quotes, C escapes, and `%` for specifiers. */
function quote(word: string): string {
  if (/^[\w@:,./=+-]+$/.test(word)) return word
  const escaped = word.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
  return `"${escapeSpecifiers(escaped)}"`
}

function escapeSpecifiers(text: string): string {
  return text.replaceAll('%', '%%')
}
