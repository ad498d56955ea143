// Looks at the machine as the platform would find it. Nothing that it does stays: no home is made, no toolchain copied.
import { existsSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspectControlGroups } from '../../drivers/host/cgroup-support.ts'
import {
  type ControlGroups,
  findLibrary,
  findUserName,
  type HostCommand,
  inspectCommand,
  inspectUserNamespaces,
  isClockPlausible,
  measureMemory,
  readOpenFileLimit,
} from '../../drivers/host/facts.ts'
import { readTextIfPresent } from '../../drivers/host/file.ts'
import { canWrite, measureDisk, nearestExisting, supportsReflink } from '../../drivers/host/filesystem.ts'
import type { Home } from '../../drivers/host/home.ts'
import { isExecutable, isRoot, run } from '../../drivers/host/process.ts'
import { ensureToolchain, findPackage } from '../../drivers/postgres/toolchain/toolchain.ts'
import type { PostgresMajor } from '../../model/postgres/cluster.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import type { Config, Listen } from '../config.ts'
import { nextCommands } from '../install.ts'
import { addressText, inspectListen, type Listener } from '../listen.ts'
import { asRoot, type Check, type Finding, nameUserCommand, ok, problem, warning } from './finding.ts'
import { checkDatabase, checkRepository, checkSecretFile, checkTls } from './safety.ts'
import { checkStorage, sandboxChecks } from './sandbox.ts'

export interface DoctorReport {
  checks: DoctorCheck[]
}

export interface DoctorCheck extends Finding {
  name: string
  /** The level is `ok`. */
  ok: boolean
}

// The whole must answer within two seconds, whatever hangs.
const checkMillis = 1_800

export async function doctor(config: Config): Promise<DoctorReport> {
  const checks = Object.entries(listChecks(config)).map(async ([name, check]) => {
    const finding = await answerOf(check)
    return { name, ok: finding.level === 'ok', ...finding }
  })
  return { checks: await Promise.all(checks) }
}

function listChecks(config: Config): Record<string, Check> {
  return {
    Node: checkNode,
    ...Object.fromEntries(programs.map((program) => [program.package, () => checkProgram(program)])),
    libreadline8: checkReadline,
    user: checkUser,
    'PostgreSQL 17': () => checkToolchain('17', config, config.databaseUrl === undefined),
    'PostgreSQL 16': () => checkToolchain('16', config, false),
    'user namespaces': checkUserNamespaces,
    'control groups': checkControlGroups,
    ...sandboxChecks,
    home: () => checkHome(config.home),
    repository: () => checkRepository(config),
    'disk space': () => checkDisk(config.home),
    'copy on write': () => checkReflink(config.home),
    'sandbox storage': () => checkStorage(nearestExisting(config.home)),
    memory: checkMemory,
    'open files': checkOpenFiles,
    clock: checkClock,
    'platform API': () => checkListen('api', config.apiListen, config.home),
    'sandbox API': () => checkListen('sandbox', config.sandboxListen, config.home),
    edge: () => checkListen('edge', config.edgeListen, config.home),
    TLS: () => checkTls(config),
    token: () => checkSecretFile(`${config.home}/token`, 'Whoever can read it is the administrator of this platform.'),
    key: () => checkSecretFile(`${config.home}/key`, 'Whoever can read it can decrypt the stored secrets.'),
    'state database': () => checkDatabase(config.databaseUrl),
  }
}

async function answerOf(check: Check): Promise<Finding> {
  const late = sleep<Finding>(
    checkMillis,
    { level: 'problem', found: `no answer within ${checkMillis / 1000} s` },
    { ref: false },
  )
  try {
    return await Promise.race([check(), late])
  } catch (error) {
    return { level: 'problem', found: `could not be checked: ${(error as Error).message}` }
  }
}

function installCommand(debianPackage: string): string {
  return asRoot(`apt-get install -y ${debianPackage}`)
}

function checkNode(): Finding {
  const found = `${process.version.slice(1)} at ${process.execPath}`
  if (Number.parseInt(process.version.slice(1), 10) >= 24) return ok(found)
  return problem(found, 'Berth needs Node 24 or newer.', 'npm ci, then start Berth with ./berth')
}

interface Program {
  package: string
  command: HostCommand
  missing: 'warning' | 'problem'
  cost: string
}

const programs: Program[] = [
  {
    package: 's6',
    command: 's6-svscan',
    missing: 'problem',
    cost: 'Without s6 nothing can be kept running, and the platform does not start.',
  },
  {
    package: 'pgbouncer',
    command: 'pgbouncer',
    missing: 'warning',
    cost: 'Without pgbouncer, Postgres clusters have no pooled endpoint.',
  },
  {
    package: 'bubblewrap',
    command: 'bwrap',
    missing: 'warning',
    cost: 'Without bubblewrap, apps and sandboxes run as plain processes, not shut off from this machine.',
  },
  {
    package: 'iproute2',
    command: 'ip',
    missing: 'warning',
    cost: 'Without iproute2, apps and sandboxes have no network.',
  },
  {
    package: 'nftables',
    command: 'nft',
    missing: 'warning',
    cost: 'Without nftables, apps and sandboxes have no network.',
  },
  {
    package: 'dnsmasq-base',
    command: 'dnsmasq',
    missing: 'warning',
    cost: 'Without dnsmasq-base, sandboxes cannot be given rules about the names they may reach.',
  },
]

async function checkProgram(program: Program): Promise<Finding> {
  const found = await inspectCommand(program.command)
  if (found) return ok(found.version ? `${found.version} at ${found.path}` : found.path)
  return { level: program.missing, found: 'not installed', cost: program.cost, fix: installCommand(program.package) }
}

function checkReadline(): Finding {
  const path = findLibrary('libreadline.so.8')
  if (path) return ok(path)
  return warning(
    'not installed',
    'Without it the tools that back up Postgres clusters may not start.',
    installCommand('libreadline8'),
  )
}

function checkUser(): Finding {
  const name = findUserName()
  if (name !== undefined) return ok(name)
  const cost = 'PostgreSQL makes nothing for such a user, and the platform does not start.'
  return problem(`number ${process.getuid?.()}, without a name`, cost, nameUserCommand())
}

async function checkToolchain(major: PostgresMajor, config: Config, required: boolean): Promise<Finding> {
  const packaged = (await findPackage(major))?.version
  const copy = `${config.home}/toolchain/postgres-${packaged}`
  if (!hasDistribution(major) && packaged && !existsSync(`${copy}/manifest.json`)) {
    return ok(`${packaged.split('.').slice(0, 2).join('.')} from npm; copied into the home when first used`)
  }
  try {
    // With one of the distribution or a copy in place this only looks, and uses no more of the home than this.
    const toolchain = await ensureToolchain(major, { toolchain: `${config.home}/toolchain` } as Home)
    await run(`${toolchain.bin}/postgres`, ['--version'], { timeoutSeconds: 1.5 })
    return ok(describeToolchain(toolchain))
  } catch (error) {
    return {
      level: required ? 'problem' : 'warning',
      found: (error as Error).message,
      cost: required
        ? 'The platform keeps its state in it and does not start.'
        : `There can be no clusters of PostgreSQL ${major}.`,
      fix: `npm ci, or ${installCommand(`postgresql-${major}`)}`,
    }
  }
}

function describeToolchain({ version, source, bin }: Toolchain): string {
  return `${version} from ${source === 'npm' ? 'npm' : 'the system'}, in ${bin}`
}

function hasDistribution(major: PostgresMajor): boolean {
  return isExecutable(`/usr/lib/postgresql/${major}/bin/postgres`)
}

async function checkUserNamespaces(): Promise<Finding> {
  const state = await inspectUserNamespaces()
  if (state.usable) return ok(`usable, tried with ${state.by}`)
  return warning(
    `not usable: ${state.why}`,
    'Without them, apps and sandboxes run as plain processes, not shut off from this machine.',
    allowNamespacesCommand(),
  )
}

function allowNamespacesCommand(): string {
  const isSet = (name: string, value: string) => readTextIfPresent(`/proc/sys/${name}`)?.trim() === value
  if (isSet('kernel/apparmor_restrict_unprivileged_userns', '1'))
    return asRoot('sysctl -w kernel.apparmor_restrict_unprivileged_userns=0')
  if (isSet('kernel/unprivileged_userns_clone', '0')) return asRoot('sysctl -w kernel.unprivileged_userns_clone=1')
  if (isSet('user/max_user_namespaces', '0')) return asRoot('sysctl -w user.max_user_namespaces=15000')
  return 'run Berth outside of a container, or in one that may make user namespaces'
}

const neededControllers = ['cpu', 'memory', 'pids']

function checkControlGroups(): Finding {
  const groups = inspectControlGroups()
  const lacking = neededControllers.filter((controller) => !groups.writable.includes(controller))
  if (lacking.length === 0) return ok(`${groups.kind}, with ${neededControllers.join(', ')}`)
  return warning(
    groups.kind === 'none' ? 'none' : `${groups.kind}, without the right to limit ${lacking.join(', ')}`,
    'Without them, apps and sandboxes can use all memory and processors of this machine.',
    isRoot()
      ? 'mount cgroup2 at /sys/fs/cgroup, writable'
      : delegateCommands(groups, existsSync('/run/systemd/system')),
  )
}

/** An ordinary user has what systemd hands over to him, and only in version 2. */
export function delegateCommands({ kind, writable }: ControlGroups, hasSystemd: boolean): string {
  if (kind !== 'v2' || !hasSystemd) return 'run Berth as root'
  if (writable.length === 0) return ['./berth install', ...nextCommands].join(' && ')
  return `sudo systemctl edit user@.service, add the lines [Service] and Delegate=${neededControllers.join(' ')}, and log in again`
}

function checkHome(home: string): Finding {
  const elsewhere = 'or set BERTH_HOME to another directory'
  const place = nearestExisting(home)
  const cost = 'The platform keeps everything there and does not start.'
  if (!statSync(place).isDirectory())
    return problem(`${place} is not a directory`, cost, `mv ${place} ${place}.old, ${elsewhere}`)
  if (!canWrite(place))
    return problem(`${place} cannot be written`, cost, `${asRoot(`chown $USER ${place}`)}, ${elsewhere}`)
  const closed = isRoot() ? findClosedParent(home) : undefined
  if (closed) {
    const why = 'Clusters and boxes run as users of their own, who cannot reach a home below it.'
    return problem(`other users cannot traverse ${closed}`, why, `chmod o+x ${closed}, ${elsewhere}`)
  }
  return ok(place === home ? home : `${home}, made at first start`)
}

function findClosedParent(home: string): string | undefined {
  let parent = dirname(home)
  while (parent !== '/') {
    const entry = statSync(parent, { throwIfNoEntry: false })
    if (entry && (entry.mode & 0o001) === 0) return parent
    parent = dirname(parent)
  }
  return undefined
}

const gigabyte = 1e9

async function checkDisk(home: string): Promise<Finding> {
  const space = await measureDisk(nearestExisting(home))
  if (!space) return warning('unknown', 'Clusters stop when the disk is full.', `df -h ${home}`)
  const found = `${inGigabytes(space.freeBytes)} of ${inGigabytes(space.totalBytes)} free`
  const fix = 'delete files, or set BERTH_HOME to a directory on a larger disk'
  if (space.freeBytes < gigabyte) return problem(found, 'Clusters stop when the disk is full, which is soon.', fix)
  if (space.freeBytes < 5 * gigabyte) return warning(found, 'Backups and restores need room for whole clusters.', fix)
  return ok(found)
}

function inGigabytes(bytes: number): string {
  return `${(bytes / gigabyte).toFixed(1)} GB`
}

async function checkReflink(home: string): Promise<Finding> {
  const place = nearestExisting(home)
  const supported = await supportsReflink(place)
  if (supported) return ok(`the file system of ${place} shares blocks between copies`)
  return warning(
    supported === undefined ? `unknown: ${place} cannot be written` : `the file system of ${place} copies every block`,
    'A restore copies the whole backup, which takes its time and its size on disk once more.',
    'set BERTH_HOME to a directory on XFS or Btrfs',
  )
}

function checkMemory(): Finding {
  const { totalBytes, availableBytes } = measureMemory()
  const found = `${inGigabytes(availableBytes)} of ${inGigabytes(totalBytes)} available`
  if (availableBytes >= gigabyte) return ok(found)
  return warning(found, 'Clusters and apps may be ended by the kernel when memory runs out.', 'free or add memory')
}

// A server of clients holds a file for each of them, and s6-svscan two for each service.
const fewOpenFiles = 8192

function checkOpenFiles(): Finding {
  const limit = readOpenFileLimit()
  if (limit === undefined) return ok('unknown')
  const found = Number.isFinite(limit) ? `${limit} for each process` : 'not limited'
  if (limit >= fewOpenFiles) return ok(found)
  return warning(
    found,
    'Each connection and each supervised service takes some of them; beyond that, new ones are refused.',
    'ulimit -n 65536 before ./berth up, or install it with ./berth install',
  )
}

function checkClock(): Finding {
  const found = new Date().toISOString()
  if (isClockPlausible()) return ok(found)
  return problem(
    `${found}, before this version of Berth was made`,
    'Restores to a point in time go by this clock, and certificates do not hold.',
    asRoot('timedatectl set-ntp true'),
  )
}

async function checkListen(part: Listener, listen: Listen, home: string): Promise<Finding> {
  const address = addressText(listen)
  const found = await inspectListen(part, listen, home)
  if (found.is === 'free')
    return ok(listen.port === 0 ? `${address}, a free port is picked at start` : `${address} is free`)
  if (found.is === 'own') return ok(`${address}, taken by this platform`)
  const look = `; to see who listens: ${asRoot(`ss -ltnp 'sport = :${listen.port}'`)}`
  return problem(
    `${address} ${found.why}`,
    'The platform cannot listen there and does not start.',
    `set ${found.setting} to another address${found.code === 'EADDRINUSE' ? look : ''}`,
  )
}
