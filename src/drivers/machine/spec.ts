// What a machine runs from: its image, its configuration, its secrets, and what the platform tells it about itself.

import type { Machine } from '../../model/app/machine.ts'
import type { MachineConfig } from '../../model/app/machine-config.ts'
import { millisOf } from '../../model/app/machine-config-check.ts'
import type { ImageConfig } from '../../model/image.ts'
import { machineAddress, resolverAddress } from '../../model/network.ts'
import { signalName } from '../../model/signal.ts'
import type { Image } from '../image/driver.ts'
import type { MachineEntrance, MachineSpec } from './driver.ts'

export interface Surroundings {
  appName: string
  secrets: Record<string, string>
  homeNumber: number
  /** Whether there are private networks on this host. */
  hasPrivateNetworks: boolean
}

/** Its configuration cannot be carried out, for a reason that is the owner's to remove. */
export class SpecError extends Error {}

const presetPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
const presetStop = { signal: 'SIGINT', timeoutMs: 5_000 }
const presetRetries = 10

/** More are a runaway. */
const pidsPerCpu = 2_048

export function machineEntrance(machine: Machine, image: Pick<Image, 'config'>, around: Surroundings): MachineEntrance {
  const { id, config } = machine
  return {
    id,
    slot: slotOf(machine),
    env: environmentOf(machine, image.config, around),
    user: config.processes?.[0]?.user ?? image.config.user,
    workingDir: image.config.workingDir,
  }
}

export function machineSpec(machine: Machine, image: Image, around: Surroundings): MachineSpec {
  const { id, instanceId, config } = machine
  return {
    ...machineEntrance(machine, image, around),
    instanceId,
    limits: limitsOf(config),
    hostname: config.dns?.hostname ?? id,
    layers: image.layers,
    argv: argvOf({ ...config.init, ...config.processes?.[0] }, image.config),
    files: filesOf(config, around.secrets),
    mounts: (config.mounts ?? []).map(({ volume, path }) => ({ volumeId: volume!, path })),
    restart: restartOf(config),
    stop: stopOf(config, image.config),
    ...(config.rootfs?.size_gb !== undefined && { rootGb: config.rootfs.size_gb }),
    keepsRoot: config.rootfs?.persist === 'always' || config.rootfs?.persist === 'restart',
    ...(around.hasPrivateNetworks && { network: networkOf(machine, around.homeNumber) }),
    ...(config.dns && dnsOf(config.dns)),
  }
}

function dnsOf(dns: NonNullable<MachineConfig['dns']>): Pick<MachineSpec, 'fqdn' | 'dns'> {
  const { nameservers = [], searches = [], options = [], hostname_fqdn: fqdn } = dns
  return { ...(fqdn && { fqdn }), dns: { nameservers, searches, options } }
}

export function networkOf({ networkNumber }: Machine, homeNumber: number): NonNullable<MachineSpec['network']> {
  return { number: networkNumber, resolver: resolverAddress(homeNumber) }
}

export function slotOf({ id, slot }: Machine): number {
  if (slot === null) throw new Error(`the machine ${id} has been removed`)
  return slot
}

interface Program {
  exec?: string[]
  entrypoint?: string[]
  cmd?: string[]
}

/** As docker has it: whoever gives another entrypoint gives its arguments too. */
function argvOf({ exec, entrypoint, cmd }: Program, image: ImageConfig): string[] {
  const argv = exec?.length
    ? exec
    : [...(entrypoint ?? image.entrypoint), ...(cmd ?? (entrypoint?.length ? [] : image.cmd))]
  if (!argv[0]) throw new SpecError('the image names no program to run; name one with config.init.exec')
  return argv
}

/** Later ones win. */
function environmentOf(machine: Machine, image: ImageConfig, around: Surroundings): Record<string, string> {
  const { config } = machine
  const program = config.processes?.[0]
  const facts = factsOf(machine, around)
  return {
    PATH: presetPath,
    ...image.env,
    PRIMARY_REGION: machine.region,
    ...config.env,
    ...program?.env,
    ...(program?.ignore_app_secrets ? {} : around.secrets),
    ...namedSecrets(program?.secrets ?? [], around.secrets),
    ...Object.fromEntries((program?.env_from ?? []).map(({ env_var, field_ref }) => [env_var, facts[field_ref]])),
    FLY_APP_NAME: facts.app_name,
    FLY_MACHINE_ID: facts.id,
    FLY_ALLOC_ID: facts.id,
    FLY_REGION: facts.region,
    FLY_PUBLIC_IP: '',
    FLY_IMAGE_REF: facts.image,
    FLY_MACHINE_VERSION: facts.version,
    FLY_PRIVATE_IP: facts.private_ip,
    FLY_PROCESS_GROUP: config.metadata?.fly_process_group ?? config.env?.FLY_PROCESS_GROUP ?? 'app',
    FLY_VM_MEMORY_MB: String(limitsOf(config).memoryMb),
  }
}

/** What a machine may be told about itself, under the names that configurations use. */
function factsOf(machine: Machine, { appName, homeNumber, hasPrivateNetworks }: Surroundings) {
  return {
    id: machine.id,
    version: machine.instanceId,
    app_name: appName,
    private_ip: hasPrivateNetworks ? machineAddress(homeNumber, machine.networkNumber, slotOf(machine)) : '',
    region: machine.region,
    image: imageText(machine),
  }
}

function namedSecrets(wanted: { env_var: string; name?: string }[], secrets: Record<string, string>) {
  return Object.fromEntries(
    wanted.map(({ env_var, name }) => {
      // Clients send an empty name for the same one.
      const secret = name || env_var
      const value = secrets[secret]
      if (value === undefined)
        throw new SpecError(`config.processes names the secret ${secret}, which the app does not have`)
      return [env_var, value]
    }),
  )
}

function imageText({ config, image }: Machine): string {
  return image?.registry
    ? `${image.registry}/${image.repository}${image.tag && `:${image.tag}`}@${image.digest}`
    : config.image
}

export function limitsOf({ guest, init }: MachineConfig): MachineSpec['limits'] {
  const cpus = guest?.cpus ?? 1
  const swapMb = init?.swap_size_mb
  return {
    memoryMb: guest?.memory_mb ?? 256,
    ...(swapMb !== undefined && { swapMb }),
    cpus,
    pids: cpus * pidsPerCpu,
  }
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
  return { policy: policy === 'spot-price' ? 'on-failure' : policy, maxRetries: restart?.max_retries ?? presetRetries }
}

function stopOf({ stop_config }: MachineConfig, image?: Pick<ImageConfig, 'stopSignal'>): MachineSpec['stop'] {
  return {
    signal: signalName(stop_config?.signal ?? image?.stopSignal ?? presetStop.signal),
    timeoutMs: millisOf(stop_config?.timeout) ?? presetStop.timeoutMs,
  }
}

/** What the caller of the stop asked for, else what its configuration says. */
export function stopNow(
  { config, stopSignal, stopTimeoutMs }: Machine,
  image?: Pick<ImageConfig, 'stopSignal'>,
): MachineSpec['stop'] {
  const preset = stopOf(config, image)
  return {
    signal: stopSignal === null ? preset.signal : signalName(stopSignal),
    timeoutMs: stopTimeoutMs ?? preset.timeoutMs,
  }
}
