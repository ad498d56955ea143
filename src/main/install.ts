// Writes two systemd units: the supervision tree, which runs all workloads, and the control plane, which can be restarted
// and upgraded without an effect on workloads.
import { randomBytes } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readTextIfPresent } from '../drivers/host/file.ts'
import { openHome } from '../drivers/host/home.ts'
import { baseEnvironment, findCommand, isRoot } from '../drivers/host/process.ts'
import { maxServices } from '../drivers/s6/tree.ts'
import { mountPool } from '../drivers/storage/mount.ts'
import { type Config, describeConfig } from './config.ts'
import { settings } from './setting.ts'

export interface InstallOptions {
  /** Returns the texts of the units instead of writing them. */
  print: boolean
  /** The directory for the units; default: the one that systemd reads. */
  directory?: string
  /** The settings to write into the units; default: those of this process. */
  environment?: Record<string, string | undefined>
}

/** The commands that enable the written units. */
export const nextCommands: string[] = isRoot()
  ? ['systemctl daemon-reload', 'systemctl enable --now berth-tree berth']
  : ['systemctl --user daemon-reload', 'systemctl --user enable --now berth-tree berth', 'loginctl enable-linger']

interface Unit {
  file: string
  text: string
}

/** Returns the paths of the written files, or with `print` the texts of the units. */
export async function install(config: Config, options: InstallOptions): Promise<string[]> {
  const directory = options.directory === undefined ? unitDirectory() : resolve(options.directory)
  if (options.print) return renderUnits(config, directory, options).map(({ file, text }) => `# ${file}\n${text}`)
  if (options.directory === undefined) refuseWithoutSystemd()
  await mountPool(config.home)
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const units = renderUnits({ ...config, home: home.path }, directory, options)
  mkdirSync(directory, { recursive: true })
  for (const unit of units) refuseOtherHome(unit, home.path)
  const secrets = renderSecrets(config, options)
  const environmentFile = `${home.path}/environment`
  // An existing file is kept unless the settings contain secrets.
  if (secrets !== '') writeAtomically(environmentFile, secrets, 0o600)
  for (const { file, text } of units) writeAtomically(file, text, 0o644)
  return [...units.map(({ file }) => file), ...(secrets === '' ? [] : [environmentFile])]
}

function unitDirectory(): string {
  return isRoot() ? '/etc/systemd/system' : `${homedir()}/.config/systemd/user`
}

function refuseWithoutSystemd(): void {
  if (existsSync('/run/systemd/system')) return
  throw new Error(
    'systemd does not run on this machine: start the platform with "berth up", or choose another directory with --directory',
  )
}

function refuseOtherHome({ file }: Unit, home: string): void {
  const line = readTextIfPresent(file)?.match(/^Environment="?BERTH_HOME=.*$/m)?.[0]
  if (line === undefined || line === renderVariable('BERTH_HOME', home)) return
  throw new Error(
    `${file} is for another home (${line}): remove it first, or choose another directory with --directory`,
  )
}

function writeAtomically(file: string, text: string, mode: number): void {
  const temporary = `${file}.${randomBytes(6).toString('hex')}`
  writeFileSync(temporary, text, { mode, flag: 'wx' })
  chmodSync(temporary, mode)
  renameSync(temporary, file)
}

function renderUnits(config: Config, directory: string, options: InstallOptions): Unit[] {
  return [
    { file: `${directory}/berth-tree.service`, text: renderTree(config) },
    { file: `${directory}/berth.service`, text: renderControlPlane(config, options) },
  ]
}

export const launcher = fileURLToPath(new URL('../../berth', import.meta.url))

function renderTree(config: Config): string {
  const tree = `${config.home}/tree`
  const program = (name: string) => findCommand(name) ?? `/usr/bin/${name}`
  const control = program('s6-svscanctl')
  return renderUnit({
    Unit: [
      'Description=Berth: supervision tree with all workloads',
      `RequiresMountsFor=${quote(config.home)}`,
      ...networkOrder(),
    ],
    Service: [
      'Type=exec',
      'WorkingDirectory=/',
      ...Object.entries({ ...baseEnvironment, BERTH_HOME: config.home, BERTH_UID_BASE: String(config.uidBase) }).map(
        ([name, value]) => renderVariable(name, value),
      ),
      comment('Stops a tree that was started by hand; its services are started again in this one.'),
      command('ExecStartPre', '/bin/sh', '-c', endOtherTree, 'end-other-tree', control, tree, launcher),
      comment('Mounts the storage pool, if the home has one.'),
      command('ExecStartPre', launcher, 'storage', 'mount'),
      command('ExecStart', program('s6-svscan'), '-c', String(maxServices), tree),
      comment('Delays the control plane until the tree is ready, because it would start its own otherwise.'),
      command('ExecStartPost', '/bin/sh', '-c', waitForTree, 'wait-for-tree', control, tree),
      command('ExecStop', launcher, 'down'),
      comment('Workloads survive a crash of s6-svscan, which adopts them after its restart. "berth down" stops them.'),
      'KillMode=process',
      comment('More than the 40 s that "berth down" waits for workloads before and after SIGKILL.'),
      'TimeoutSec=60',
      comment('Not "always": it stays stopped after a manual "berth down".'),
      'Restart=on-failure',
      'RestartSec=100ms',
      comment(
        'Workloads have their own control groups below this one; one that is out of memory must not stop the others.',
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
      comment('Never give up: the state database or a network address may be unavailable for a long time.'),
      'StartLimitIntervalSec=0',
    ],
    Service: [
      'Type=exec',
      'WorkingDirectory=/',
      ...listVariables(config, options).map(([name, value]) => renderVariable(name, value)),
      `EnvironmentFile=-${escapeSpecifiers(`${config.home}/environment`)}`,
      command('ExecStart', launcher, 'up'),
      comment('Helper processes end with the control plane. Those that hold sessions of sandboxes survive it.'),
      'KillMode=process',
      'TimeoutStopSec=30',
      'Restart=always',
      'RestartSec=1',
      'TasksMax=infinity',
      ...limits,
    ],
    Install: [`WantedBy=${bootTarget()}`],
  })
}

// Options that give a unit its own mount namespace would hide from workloads what the control plane mounts for them, and
// system call filters would apply inside sandboxes. The remaining limits are on capabilities that no workload needs.
// The systemd instance of an unprivileged user cannot drop capabilities.
const limits = [
  'LimitNOFILE=1048576',
  ...(isRoot() ? ['CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_TIME CAP_WAKE_ALARM'] : []),
]

function networkOrder(): string[] {
  // The systemd instance of an unprivileged user has no network targets.
  return isRoot() ? ['Wants=network-online.target', 'After=network-online.target'] : []
}

function bootTarget(): string {
  return isRoot() ? 'multi-user.target' : 'default.target'
}

/** Lists every setting that is set and not secret. Paths are absolute, because units run in another directory. */
function listVariables(config: Config, { environment }: InstallOptions): [string, string][] {
  const paths: Record<string, string | undefined> = {
    BERTH_TLS_CERT: config.tls?.certFile,
    BERTH_TLS_KEY: config.tls?.keyFile,
    BERTH_PG16_BIN: config.pgBins[16],
    BERTH_PG17_BIN: config.pgBins[17],
    BERTH_POSTGRES_DIRECTORY: config.postgresDirectory,
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

/** Renders the file for secrets, which only its owner can read; units are world-readable. */
function renderSecrets(config: Config, { environment }: InstallOptions): string {
  const values: Record<string, string | undefined> = {
    BERTH_TOKEN: config.token,
    BERTH_DATABASE_URL: config.databaseUrl,
    BERTH_EDGE_DATABASE_URL: config.edgeDatabaseUrl,
  }
  const lines = describeConfig(environment)
    .filter(({ name, set }) => set && isSecret(name))
    .map(({ name }) => {
      const value = values[name]
      if (value === undefined) throw new Error(`${name} cannot be written to the environment file`)
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

// systemd expands variables in the arguments, but not in the path of the program.
function command(key: string, program: string, ...args: string[]): string {
  return `${key}=${[quote(program), ...args.map((arg) => quote(arg.replaceAll('$', '$$$$')))].join(' ')}`
}

/** Quotes a word for systemd, which reads C escapes inside quotes and `%` as specifiers. */
function quote(word: string): string {
  if (/^[\w@:,./=+-]+$/.test(word)) return word
  const escaped = word.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
  return `"${escapeSpecifiers(escaped)}"`
}

function escapeSpecifiers(text: string): string {
  return text.replaceAll('%', '%%')
}
