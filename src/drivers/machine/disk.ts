// What a machine needs on the host's disk before it starts.
import { existsSync, rmSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { machineAddress } from '../../model/network.ts'
import { readSignal } from '../../model/signal.ts'
import { ensureFilter, networkValues, renderLines } from '../box/disk.ts'
import { type IsolationMode, renderWords, variableName } from '../box/enter/enter.ts'
import { boxNetwork, ensureRules, findResolvers } from '../box/network.ts'
import { boxUid } from '../box/paths.ts'
import { findFreezer } from '../host/cgroup-freezer.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ensureDirectory, ensureFile } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { findCommand } from '../host/process.ts'
import { privateConfig } from '../network/private.ts'
import { type MachineSpec, MachineStartError } from './driver.ts'
import { ensureInside } from './inside.ts'
import { changeDirectory, type MachinePaths } from './paths.ts'
import { memoryGroup } from './script.ts'
import { prepareTraffic } from './traffic.ts'

export interface MachineMaking {
  way: IsolationMode
  hasNetwork: boolean
  /** Of its control groups, those with limits. */
  procs: string[]
  /** Files of control groups and what is to stand in them. */
  limits: Record<string, string>
  /** The bytes that it may write to its root, or `none` for as many as it likes; undefined where nothing could limit them. */
  rootLimit: string | undefined
  volumes: { kind: 'directory' | 'image'; source: string; path: string }[]
}

const secret = { mode: 0o600 }

/** Afterwards the next start is one of this version. What is known of another one is gone. */
export function prepareMachine(home: Home, paths: MachinePaths, spec: MachineSpec, making: MachineMaking): void {
  for (const directory of [`${home.path}/machine`, paths.directory, `${home.path}/sandbox-base`])
    ensureDirectory(directory, { mode: 0o711 })
  ensureInside(paths)
  for (const directory of ['root', 'lower']) ensureDirectory(`${paths.directory}/${directory}`, { mode: 0o711 })
  ensureDirectory(changeDirectory(home), { mode: 0o700 })
  for (const stream of ['stdout', 'stderr']) ensureDirectory(`${paths.log}/${stream}`, { mode: 0o700 })
  if (readVersion(paths) !== spec.instanceId) rmSync(paths.exits, { force: true })
  for (const file of [paths.stopping, paths.failed, paths.restarts]) rmSync(file, { force: true })
  ensureFile(paths.config, renderConfig(home, paths, spec, making), secret)
  ensureFile(paths.program, renderProgram(home, spec, making), secret)
  ensureFile(paths.policy, `${spec.restart.policy} ${spec.restart.maxRetries}\n`, secret)
  prepareTraffic(home, paths, spec)
  ensureFile(paths.version, spec.instanceId, secret)
}

/** The group that limits its memory, if there is one. */
export function readMemoryGroup(paths: MachinePaths): string | undefined {
  return /^memory-group (.+)$/m.exec(readTextIfPresent(paths.config) ?? '')?.[1]
}

/** The group that holds it still, if there is one. */
export function readFreezer(paths: MachinePaths): string | undefined {
  const memory = readMemoryGroup(paths)
  return memory && findFreezer(`${memory}/cgroup.procs`)
}

export function readVersion(paths: MachinePaths): string | undefined {
  return readTextIfPresent(paths.version)
}

function renderConfig(home: Home, paths: MachinePaths, spec: MachineSpec, making: MachineMaking): string {
  if (!/^[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}$/.test(spec.hostname))
    throw new MachineStartError(`not a hostname: ${JSON.stringify(spec.hostname)}`)
  const uid = boxUid(home, spec.slot)
  const network = making.hasNetwork ? { ...boxNetwork(home, spec.slot), rules: ensureRules(home) } : undefined
  const memory = memoryGroup(making.procs)
  return renderLines(
    {
      way: making.way,
      machine: process.arch,
      directory: paths.directory,
      filter: ensureFilter(home),
      bwrap: findCommand('bwrap') ?? 'bwrap',
      program: paths.program,
      trash: `${home.path}/trash`,
      ...(uid !== undefined && { uid: String(uid) }),
      hostname: spec.hostname,
      'stop-signal': String(readSignal(spec.stop.signal)),
      ...(spec.keepsRoot && { 'keeps-root': 'yes' }),
      ...(making.rootLimit && { 'root-limit': making.rootLimit }),
      ...(memory && { 'memory-group': memory }),
      groups: making.procs.map(dirname).map(shownGroup).join('\t'),
      ...(network && networkValues(network)),
      ...(network && spec.network && privateConfig(home, spec.network.number, spec.slot)),
    },
    {
      layer: spec.layers,
      limit: Object.entries(making.limits).map(([file, value]) => `${file} ${value}`),
    },
  )
}

/** Where programs look for the limits they have: below `/sys/fs/cgroup`, the one group or one of each kind. */
function shownGroup(group: string): string {
  const kind = existsSync(`${group}/cgroup.controllers`) ? '' : `/${basename(dirname(group))}`
  return `${kind} ${group}`
}

/** Everything of the user. Contents of files are in hexadecimal digits, since they may hold any byte. */
function renderProgram(home: Home, spec: MachineSpec, { hasNetwork, volumes }: MachineMaking): string {
  const files = [
    ...ownFiles(home, spec, hasNetwork).map(([path, text]) => [path, '!0644', Buffer.from(text).toString('hex')]),
    ...spec.files.map(({ path, content, mode }) => [checkedPath(path), modeText(mode), content.toString('hex')]),
  ]
  const env = { PATH: defaultPath, ...spec.env }
  if (spec.argv.length === 0) throw new MachineStartError('a machine needs a program to run')
  return renderWords({
    argv: spec.argv,
    env: Object.entries(env).map(([name, value]) => `${variableName(name)}=${value}`),
    user: [spec.user],
    dir: [workingDirectory(spec)],
    files: files.flat(),
    volumes: volumes.flatMap(({ kind, source, path }) => [kind, source, checkedPath(path)]),
  })
}

const defaultPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

export function workingDirectory({ workingDir }: Pick<MachineSpec, 'workingDir'>): string {
  return workingDir.startsWith('/') ? workingDir : `/${workingDir}`
}

function checkedPath(path: string): string {
  if (!path.startsWith('/')) throw new MachineStartError(`not an absolute path: ${JSON.stringify(path)}`)
  return path
}

function modeText(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}

/** What the platform tells every machine in its files. They replace those of the image, links too. */
function ownFiles(home: Home, spec: MachineSpec, hasNetwork: boolean): [string, string][] {
  const address = hasNetwork && spec.network ? machineAddress(home.number, spec.network.number, spec.slot) : undefined
  const hosts = [
    // The first name of an address is the whole one.
    ...(spec.fqdn ? [`127.0.1.1 ${spec.fqdn} ${spec.hostname}`] : []),
    `127.0.0.1 localhost${spec.fqdn ? '' : ` ${spec.hostname}`}`,
    '::1 localhost ip6-localhost ip6-loopback',
    ...(address ? [`${address} fly-local-6pn`] : []),
    // Where the edge sends datagrams: some programs listen for them at this name, and not at all addresses.
    `${hasNetwork ? boxNetwork(home, spec.slot).address : '127.0.0.1'} fly-global-services`,
  ]
  return [
    ['/etc/hosts', `${hosts.join('\n')}\n`],
    ['/etc/hostname', `${spec.hostname}\n`],
    ['/etc/resolv.conf', renderResolver(spec, hasNetwork)],
  ]
}

function renderResolver({ dns, network }: MachineSpec, hasNetwork: boolean): string {
  if (!hasNetwork) return ''
  const preset = network ? [network.resolver] : findResolvers()
  const servers = dns?.nameservers.length ? dns.nameservers : preset
  const line = (name: string, words: string[] = []) => (words.length > 0 ? `${name} ${words.join(' ')}\n` : '')
  const asked = servers.map((server) => `nameserver ${server}\n`).join('')
  return asked + line('search', dns?.searches) + line('options', dns?.options)
}
