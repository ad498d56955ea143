// The files that a machine is started from.
import { existsSync, rmSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { defaultPath } from '../../model/app/machine-environment.ts'
import type { ContainerSpec, MachineSpec } from '../../model/app/machine-spec.ts'
import { machineAddress } from '../../model/network.ts'
import { readSignal } from '../../model/signal.ts'
import { ensureFilter, networkConfig, renderConfigLines } from '../box/disk.ts'
import { type IsolationMode, renderWords, variableName } from '../box/enter/enter.ts'
import { boxNetwork, ensureRules, findResolvers } from '../box/network.ts'
import { boxUid } from '../box/paths.ts'
import { ensureDirectory, ensureFile } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { findCommand } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { moveToTrash } from '../host/trash.ts'
import { privateNetworkConfig } from '../network/private.ts'
import { containerPaths, listContainerDirectories } from './container.ts'
import { memoryGroup } from './control-group.ts'
import { MachineStartError } from './driver.ts'
import { ensureInside } from './inside.ts'
import { changeDirectory, type MachinePaths } from './paths.ts'
import { readVersion } from './process.ts'
import { prepareTraffic } from './traffic.ts'

/** What the host contributes to a start. */
export interface HostResources {
  mode: IsolationMode
  hasNetwork: boolean
  /** The `cgroup.procs` files of the groups that limit the machine. */
  procs: string[]
  /** Files of control groups and the values to write to them. */
  limits: Record<string, string>
  /** The bytes that may be written to the root filesystem, or `none` for no limit; undefined where none can be enforced. */
  rootLimit: string | undefined
  /** The project of the root filesystem, where project quotas limit it, and the mount point of the home. */
  rootProject: { id: number; mountPoint: string } | undefined
  volumes: { kind: 'directory' | 'image'; source: string; path: string }[]
}

const secret = { mode: 0o600 }

/** Writes everything that the next start reads, and removes the record of other versions. */
export function prepareMachine(home: Home, paths: MachinePaths, spec: MachineSpec, resources: HostResources): void {
  // The program may run as any user of the box and needs to traverse its own directory; only root reaches the parent.
  for (const closed of ['machine', 'sandbox-base']) ensureDirectory(`${home.path}/${closed}`, { mode: 0o700 })
  ensureDirectory(paths.directory, { mode: 0o711 })
  ensureInside(paths)
  for (const directory of ['root', 'lower']) ensureDirectory(`${paths.directory}/${directory}`, { mode: 0o711 })
  ensureDirectory(changeDirectory(home), { mode: 0o700 })
  for (const stream of ['stdout', 'stderr']) ensureDirectory(`${paths.log}/${stream}`, { mode: 0o700 })
  if (readVersion(paths) !== spec.instanceId) rmSync(paths.exits, { force: true })
  for (const file of [paths.stopping, paths.failed, paths.restarts, paths.containers]) rmSync(file, { force: true })
  prepareContainers(home, paths, spec, resources)
  ensureFile(paths.config, renderConfig(home, paths, spec, resources), secret)
  ensureFile(paths.program, renderProgram(home, spec, resources), secret)
  const policy = spec.containers.length > 0 ? 'containers 0' : policyText(spec)
  ensureFile(paths.policy, `${policy}\n`, secret)
  prepareTraffic(home, paths, spec)
  ensureFile(paths.version, spec.instanceId, secret)
}

function policyText({ restart }: Pick<MachineSpec, 'restart'>): string {
  return `${restart.policy} ${restart.maxRetries}`
}

/** Writes the files of the containers, and discards what other versions of the machine left. */
function prepareContainers(home: Home, paths: MachinePaths, spec: MachineSpec, resources: HostResources): void {
  const names = spec.containers.map(({ name }) => name)
  for (const name of listContainerDirectories(paths))
    if (!names.includes(name)) moveToTrash(home, containerPaths(paths, name).directory)
  if (names.length === 0) return
  moveToTrash(home, `${paths.directory}/layer`)
  ensureDirectory(`${paths.directory}/container`, { mode: 0o711 })
  for (const container of spec.containers) {
    const own = containerPaths(paths, container.name)
    for (const part of ['', '/root', '/lower']) ensureDirectory(`${own.directory}${part}`, { mode: 0o711 })
    ensureFile(own.config, renderContainer(home, paths, { ...spec, ...container }, resources), secret)
    ensureFile(own.program, renderProgram(home, { ...spec, ...container }, resources), secret)
  }
}

/** Of all containers of a machine together. */
const maxTerminals = 256

function renderContainer(
  home: Home,
  paths: MachinePaths,
  spec: MachineSpec & ContainerSpec,
  resources: HostResources,
): string {
  const { directory, program } = containerPaths(paths, spec.name)
  return renderConfigLines(
    {
      ...commonConfig(home, spec, resources),
      directory,
      program,
      inside: '../../api/inside',
      'shares-network': 'yes',
      terminals: String(Math.floor(maxTerminals / spec.containers.length)),
      restart: policyText(spec),
      'stop-ms': String(spec.stop.timeoutMs),
      ...(spec.stopsUnhealthy && { 'stops-unhealthy': 'yes' }),
    },
    { layer: spec.layers, depends: spec.dependsOn.map(({ name, condition }) => `${name} ${condition}`) },
  )
}

function renderConfig(home: Home, paths: MachinePaths, spec: MachineSpec, resources: HostResources): string {
  if (!/^[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}$/.test(spec.hostname))
    throw new MachineStartError(`not a hostname: ${JSON.stringify(spec.hostname)}`)
  const network = resources.hasNetwork ? { ...boxNetwork(home, spec.slot), rules: ensureRules(home) } : undefined
  return renderConfigLines(
    {
      ...commonConfig(home, spec, resources),
      directory: paths.directory,
      program: paths.program,
      changes: changeDirectory(home),
      ...(network && networkConfig(network)),
      ...(network && spec.network && privateNetworkConfig(home, spec.network.number, spec.slot)),
    },
    {
      layer: spec.layers,
      container: spec.containers.map(({ name }) => name),
      limit: Object.entries(resources.limits).map(([file, value]) => `${file} ${value}`),
    },
  )
}

/** What a machine and its containers have in common. */
function commonConfig(home: Home, spec: MachineSpec, resources: HostResources): Record<string, string> {
  const uid = boxUid(home, spec.slot)
  const memory = memoryGroup(resources.procs)
  return {
    way: resources.mode,
    machine: process.arch,
    filter: ensureFilter(home),
    bwrap: findCommand('bwrap') ?? 'bwrap',
    trash: `${home.path}/trash`,
    ...(uid !== undefined && { uid: String(uid) }),
    hostname: spec.hostname,
    'stop-signal': String(readSignal(spec.stop.signal)),
    ...(spec.keepsRoot && { 'keeps-root': 'yes' }),
    ...(resources.rootLimit && { 'root-limit': resources.rootLimit }),
    ...(resources.rootProject && {
      'root-project': String(resources.rootProject.id),
      'quota-mount': resources.rootProject.mountPoint,
      'project-program': driverProgram('storage/project.pl'),
    }),
    ...(memory && { 'memory-group': memory }),
    groups: resources.procs.map(dirname).map(visibleGroup).join('\t'),
  }
}

/** Maps a group to its path below `/sys/fs/cgroup` in the machine: the root on cgroup v2, one per controller on v1. */
function visibleGroup(group: string): string {
  const path = existsSync(`${group}/cgroup.controllers`) ? '' : `/${basename(dirname(group))}`
  return `${path} ${group}`
}

/** Renders what the user provides. File contents are hexadecimal because they may hold any byte. */
function renderProgram(home: Home, spec: MachineSpec, { hasNetwork, volumes }: HostResources): string {
  const files = [
    ...platformFiles(home, spec, hasNetwork).map(([path, text]) => [path, '!0644', Buffer.from(text).toString('hex')]),
    ...spec.files.map(({ path, content, mode }) => [requireAbsolute(path), modeText(mode), content.toString('hex')]),
  ]
  const env = { PATH: defaultPath, ...spec.env }
  if (spec.argv.length === 0) throw new MachineStartError('a machine needs a program to run')
  return renderWords({
    argv: spec.argv,
    env: Object.entries(env).map(([name, value]) => `${variableName(name)}=${value}`),
    user: [spec.user],
    dir: [workingDirectory(spec)],
    files: files.flat(),
    volumes: volumes.flatMap(({ kind, source, path }) => [kind, source, requireAbsolute(path)]),
  })
}

export function workingDirectory({ workingDir }: Pick<MachineSpec, 'workingDir'>): string {
  return workingDir.startsWith('/') ? workingDir : `/${workingDir}`
}

function requireAbsolute(path: string): string {
  if (!path.startsWith('/')) throw new MachineStartError(`not an absolute path: ${JSON.stringify(path)}`)
  return path
}

function modeText(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}

/** The files that the platform writes into every machine. They replace those of the image, even if those are links. */
function platformFiles(home: Home, spec: MachineSpec, hasNetwork: boolean): [string, string][] {
  const address = hasNetwork && spec.network ? machineAddress(home.number, spec.network.number, spec.slot) : undefined
  const hosts = [
    // The first name of an address is its canonical name.
    ...(spec.fqdn ? [`127.0.1.1 ${spec.fqdn} ${spec.hostname}`] : []),
    `127.0.0.1 localhost${spec.fqdn ? '' : ` ${spec.hostname}`}`,
    '::1 localhost ip6-localhost ip6-loopback',
    ...(address ? [`${address} fly-local-6pn`] : []),
    // The edge sends datagrams to this address. Some programs bind UDP sockets to this name instead of to all addresses.
    `${hasNetwork ? boxNetwork(home, spec.slot).address : '127.0.0.1'} fly-global-services`,
  ]
  return [
    ['/etc/hosts', `${hosts.join('\n')}\n`],
    ['/etc/hostname', `${spec.hostname}\n`],
    ['/etc/resolv.conf', renderResolvConf(spec, hasNetwork)],
  ]
}

function renderResolvConf({ dns, network }: MachineSpec, hasNetwork: boolean): string {
  if (!hasNetwork) return ''
  const defaultServers = network ? [network.resolver] : findResolvers()
  const servers = dns?.nameservers.length ? dns.nameservers : defaultServers
  const line = (name: string, words: string[] = []) => (words.length > 0 ? `${name} ${words.join(' ')}\n` : '')
  const nameservers = servers.map((server) => `nameserver ${server}\n`).join('')
  return nameservers + line('search', dns?.searches) + line('options', dns?.options)
}
