// Combines a machine's row, its image and its app's secrets into the description that the driver starts it from.

import { goDurationMs } from '../duration.ts'
import type { ImageConfig } from '../image.ts'
import { resolverAddress } from '../network.ts'
import { signalName } from '../signal.ts'
import { type ContainerCondition, type MachineContainer, mainContainer } from './container/config.ts'
import type { Machine } from './machine.ts'
import type { MachineConfig } from './machine-config.ts'
import { formatDnsOption } from './machine-config-dns.ts'
import { machineEnvironment } from './machine-environment.ts'
import { type MachineLimits, machineLimits } from './machine-limits.ts'
import { getSlot, type SpecContext, SpecError } from './machine-spec-context.ts'
import type { TrafficPolicy } from './network-policy.ts'

/** A program and the root filesystem that it runs in. */
export interface ProgramSpec {
  /** Directories with the unpacked layers of its image, lowest first. */
  layers: string[]
  /** The program and its arguments; the program is looked up in the PATH of `env` inside the machine. */
  argv: string[]
  /** The complete environment, including secrets. */
  env: Record<string, string>
  /** A user name or uid, optionally with a group, in the syntax of image configurations. Empty means root. */
  user: string
  workingDir: string
  files: { path: string; content: Buffer; mode: number }[]
  restart: { policy: 'no' | 'always' | 'on-failure'; maxRetries: number }
  stop: StopOptions
}

export interface ContainerSpec extends ProgramSpec {
  name: string
  dependsOn: { name: string; condition: ContainerCondition }[]
  /** Whether it is stopped when it becomes unhealthy. */
  stopsUnhealthy: boolean
}

/** What the driver needs to start a machine. The names of its host resources are derived from `id` and `slot`. */
export interface MachineSpec extends ProgramSpec {
  /** 14 hexadecimal digits. */
  id: string
  /** Identifies the version. Another version is another program with its own root filesystem. */
  instanceId: string
  /** From the same range of numbers as the slots of sandboxes. */
  slot: number
  hostname: string
  /** The fully qualified name that `/etc/hosts` gives the machine. */
  fqdn?: string
  limits: MachineLimits
  mounts: { volumeId: string; path: string }[]
  /** Run instead of the program of the machine, whose fields are then those of its main container. */
  containers: ContainerSpec[]
  /** Whether changes to the root filesystem survive a stop. */
  keepsRoot: boolean
  /** The most that may be written to the root filesystem, on hosts that can enforce it. */
  rootGb?: number
  /** The private network; undefined on hosts that have none. */
  network?: MachineNetwork
  /** Restricts traffic, except for what the platform itself forwards. */
  policy?: TrafficPolicy
  /** Settings for `/etc/resolv.conf`; without name servers the platform's resolver is used. */
  dns?: { nameservers: string[]; searches: string[]; options: string[] }
}

export interface StopOptions {
  signal: string
  timeoutMs: number
  /** Whether the signal was asked for. Otherwise containers get their own. */
  isSignalRequested?: boolean
}

export interface MachineNetwork {
  number: number
  resolver: string
}

/** What the driver needs to apply a traffic policy to a machine. */
export type MachineTraffic = Pick<MachineSpec, 'id' | 'network' | 'policy'>

/** What the driver needs to run a command in a machine as its program would run it. */
export type ExecTarget = Pick<MachineSpec, 'id' | 'slot' | 'env' | 'user' | 'workingDir'> & { container?: string }

const defaultStop = { signal: 'SIGINT', timeoutMs: 5_000 }
const defaultMaxRetries = 10
/** The deadline of the state `stopping` leaves room for more. */
const maxContainersStopMs = 300_000

/** With a container, the machine must be the one that `containerMachine` returns for it. */
export function execTarget(
  machine: Machine,
  image: { config: ImageConfig },
  context: SpecContext,
  container?: MachineContainer,
): ExecTarget {
  const { id, config } = machine
  return {
    id,
    slot: getSlot(machine),
    env: machineEnvironment(machine, image.config, context),
    user: config.processes?.[0]?.user ?? image.config.user,
    workingDir: image.config.workingDir,
    ...(container && { container: container.name }),
  }
}

interface UnpackedImage {
  config: ImageConfig
  layers: string[]
}

/** `containerImages` has the image of each container by its name. */
export function machineSpec(
  machine: Machine,
  image: UnpackedImage,
  context: SpecContext,
  containerImages: Map<string, UnpackedImage> = new Map(),
): MachineSpec {
  const { id, instanceId, config } = machine
  const containers = (config.containers ?? []).map((container) =>
    containerSpec(machine, container, containerImages.get(container.name)!, context),
  )
  const main = containers.find(({ name }) => name === mainContainer(config)?.name)
  return {
    ...(main ?? programSpec(machine, image, context)),
    id,
    slot: getSlot(machine),
    instanceId,
    limits: machineLimits(config),
    hostname: config.dns?.hostname ?? id,
    mounts: (config.mounts ?? []).map(({ volume, path }) => ({ volumeId: volume!, path })),
    containers,
    ...(config.rootfs?.size_gb !== undefined && { rootGb: config.rootfs.size_gb }),
    keepsRoot: config.rootfs?.persist === 'always' || config.rootfs?.persist === 'restart',
    ...(context.hasPrivateNetworks && { network: machineNetwork(machine, context.homeNumber) }),
    ...(config.dns && dnsOf(config.dns)),
    stop: stopOptions({ ...machine, stopSignal: null, stopTimeoutMs: null }, image.config),
  }
}

function programSpec(machine: Machine, image: UnpackedImage, context: SpecContext): ProgramSpec {
  const { config } = machine
  const { env, user, workingDir } = execTarget(machine, image, context)
  return {
    layers: image.layers,
    argv: argvOf({ ...config.init, ...config.processes?.[0] }, image.config),
    env,
    user,
    workingDir,
    files: filesOf(config, context.secrets),
    restart: restartOf(config),
    stop: configuredStop(config, image.config),
  }
}

function containerSpec(
  machine: Machine,
  container: MachineContainer,
  image: UnpackedImage,
  context: SpecContext,
): ContainerSpec {
  try {
    return {
      ...programSpec(containerMachine(machine, container), image, context),
      name: container.name,
      dependsOn: (container.depends_on ?? []).map(({ name, condition = 'started' }) => ({ name, condition })),
      stopsUnhealthy: (container.healthchecks ?? []).some(({ unhealthy }) => unhealthy === 'stop'),
    }
  } catch (error) {
    if (error instanceof SpecError) throw new SpecError(`container ${container.name}: ${error.message}`)
    throw error
  }
}

/** The machine as it would be if the container were its only program. */
export function containerMachine(machine: Machine, container: MachineContainer): Machine {
  const { config } = machine
  const { image, exec, entrypoint, cmd, user, env, secrets, env_from, files, restart, stop } = container
  const program = { exec, entrypoint, cmd }
  const process = { user, env, secrets, env_from, ignore_app_secrets: secrets && true }
  const whole = {
    ...config,
    image,
    init: defined(program),
    processes: [defined(process)],
    files: files ?? [],
    restart: restart ?? config.restart,
    stop_config: stop ?? config.stop_config,
  }
  return { ...machine, config: defined(whole), image: machine.containerImages?.[container.name] ?? null }
}

/** Leaves out what is undefined. */
function defined<T extends object>(fields: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never
}

export function machineNetwork({ networkNumber }: Machine, homeNumber: number): MachineNetwork {
  return { number: networkNumber, resolver: resolverAddress(homeNumber) }
}

/** Prefers the signal and timeout of the stop request to those of the configuration. */
export function stopOptions(
  { config, stopSignal, stopTimeoutMs }: Pick<Machine, 'config' | 'stopSignal' | 'stopTimeoutMs'>,
  image?: Pick<ImageConfig, 'stopSignal'>,
): StopOptions {
  const configured = configuredStop(config, image)
  return {
    signal: stopSignal === null ? configured.signal : signalName(stopSignal),
    timeoutMs: stopTimeoutMs ?? (config.containers ? containerStopMs(config) : configured.timeoutMs),
    ...(config.containers && stopSignal !== null && { isSignalRequested: true }),
  }
}

/** The time that stopping the containers takes at most: each is stopped after those that depend on it. */
function containerStopMs(config: MachineConfig): number {
  const containers = config.containers ?? []
  const found = new Map<string, number>()
  const stopMs = (container: MachineContainer): number => {
    const known = found.get(container.name)
    if (known !== undefined) return known
    const own = configuredStop({ ...config, ...(container.stop && { stop_config: container.stop }) }).timeoutMs
    const after = (container.depends_on ?? []).map(({ name }) => containers.find((other) => other.name === name)!)
    const total = own + Math.max(0, ...after.map(stopMs))
    found.set(container.name, total)
    return total
  }
  return Math.min(Math.max(...containers.map(stopMs)), maxContainersStopMs)
}

function configuredStop({ stop_config }: MachineConfig, image?: Pick<ImageConfig, 'stopSignal'>): StopOptions {
  return {
    signal: signalName(stop_config?.signal ?? image?.stopSignal ?? defaultStop.signal),
    timeoutMs: goDurationMs(stop_config?.timeout) ?? defaultStop.timeoutMs,
  }
}

interface Program {
  exec?: string[]
  entrypoint?: string[]
  cmd?: string[]
}

/** Follows Docker: an overridden entrypoint also discards the image's arguments. */
function argvOf({ exec, entrypoint, cmd }: Program, image: ImageConfig): string[] {
  const argv = exec?.length
    ? exec
    : [...(entrypoint ?? image.entrypoint), ...(cmd ?? (entrypoint?.length ? [] : image.cmd))]
  if (!argv[0]) throw new SpecError('the image names no program to run; name one with config.init.exec')
  return argv
}

function filesOf({ files }: MachineConfig, secrets: Record<string, string>): MachineSpec['files'] {
  return (files ?? []).map(({ guest_path: path, raw_value, secret_name, mode }) => {
    const text = raw_value ?? secrets[secret_name!]
    if (text === undefined)
      throw new SpecError(`config.files names the secret ${secret_name}, which the app does not have`)
    return { path, content: Buffer.from(text, 'base64'), mode: mode ?? 0o644 }
  })
}

function restartOf({ restart }: MachineConfig): MachineSpec['restart'] {
  const policy = restart?.policy ?? 'on-failure'
  return {
    policy: policy === 'spot-price' ? 'on-failure' : policy,
    maxRetries: restart?.max_retries ?? defaultMaxRetries,
  }
}

function dnsOf(dns: NonNullable<MachineConfig['dns']>): Pick<MachineSpec, 'fqdn' | 'dns'> {
  const { nameservers = [], searches = [], options = [], hostname_fqdn: fqdn } = dns
  return { ...(fqdn && { fqdn }), dns: { nameservers, searches, options: options.map(formatDnsOption) } }
}
