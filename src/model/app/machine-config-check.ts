// Validates what the schema of a machine config cannot express, and converts the config into the form that is stored.
// Every error is a 400 that names the field.
import { BerthError, badRequest } from '../errors.ts'
import { type ImageReference, parseImageReference } from '../image.ts'
import { checkRestart, normalizeContainers, refuseProgram } from './container/check.ts'
import { mainContainer } from './container/config.ts'
import { machineIdPattern } from './machine.ts'
import type { MachineConfig, SentConfig } from './machine-config.ts'
import { normalizeDns } from './machine-config-dns.ts'
import { checkEnvironment, checkMetadata } from './machine-config-env.ts'
import { checkFile, checkMount } from './machine-config-file.ts'
import { normalizeCheck, normalizeService } from './machine-config-service.ts'
import { normalizeStop } from './machine-config-stop.ts'
import { rejectUnsupported } from './machine-config-unsupported.ts'
import { type Guest, readGuest } from './machine-guest.ts'

/** The stored form: the guest size is resolved, and durations are text. */
export type KeptConfig = MachineConfig & { guest: Guest; init: NonNullable<MachineConfig['init']> }

/** Validates a part of the config, and returns the value to store if it differs from the one that was sent. */
type Part<K extends keyof MachineConfig> = (
  field: string,
  value: NonNullable<MachineConfig[K]>,
) => NonNullable<MachineConfig[K]> | undefined

/** In the order of checking. The first invalid field is the one that is reported. */
const parts: [keyof MachineConfig, Part<keyof MachineConfig>][] = [
  part('env', checkEnvironment),
  part('metadata', checkMetadata),
  part('restart', checkRestart),
  part('services', (field, services) => services.map((service, i) => normalizeService(`${field}.${i}`, service))),
  part('checks', (field, checks) => mapValues(checks, (name, check) => normalizeCheck(`${field}.${name}`, check))),
  part('files', forEachItem(checkFile)),
  part('mounts', forEachItem(checkMount)),
  part(
    'processes',
    forEachItem((field, { env }) => checkEnvironment(`${field}.env`, env)),
  ),
  part('stop_config', normalizeStop),
  part('init', checkInit),
  part('dns', normalizeDns),
  part('standbys', forEachItem(checkStandby)),
]

const storedFields: (keyof MachineConfig)[] = [
  'image',
  'env',
  'init',
  'guest',
  'size',
  'rootfs',
  'metrics',
  'metadata',
  'mounts',
  'services',
  'checks',
  'files',
  'statics',
  'schedule',
  'auto_destroy',
  'restart',
  'dns',
  'processes',
  'standbys',
  'stop_config',
  'disable_machine_autostart',
]

/** The config may contain fields beyond the schema; those are dropped, or rejected if the machine would need them. */
export function checkConfig(sent: SentConfig, mayUseHost: boolean): KeptConfig {
  rejectUnsupported(sent)
  const containers = normalizeContainers('config.containers', sent.containers ?? [], mayUseHost)
  const image = mainContainer({ containers })?.image ?? sent.image
  if (image === undefined) throw badRequest('config.image is required')
  readImage(image, mayUseHost)
  const { size, guest, processes, ...rest } = pick({ ...sent, image }, storedFields)
  const kept: KeptConfig = { ...rest, init: sent.init ?? {}, guest: readGuest(guest, size) }
  if (processes && processes.length > 0) kept.processes = processes
  if (containers.length > 0) {
    refuseProgram(kept)
    kept.containers = containers
  }
  const persist = (guest as { persist_rootfs?: unknown } | undefined)?.persist_rootfs
  if (persist === 'always' || persist === 'restart') kept.rootfs = { ...kept.rootfs, persist }
  for (const [key, check] of parts) {
    const normalized = kept[key] && check(`config.${key}`, kept[key])
    if (normalized !== undefined) Object.assign(kept, { [key]: normalized })
  }
  return kept
}

export function readImage(text: string, mayUseHost: boolean): ImageReference {
  try {
    return parseImageReference(text, mayUseHost)
  } catch (error) {
    if (error instanceof BerthError) throw badRequest(error.message)
    throw error
  }
}

/** Erases the type of the value, which is that of the key. */
function part<K extends keyof MachineConfig>(key: K, check: Part<K> | ((...args: Parameters<Part<K>>) => void)) {
  return [key, check as Part<keyof MachineConfig>] as [keyof MachineConfig, Part<keyof MachineConfig>]
}

function forEachItem<T>(check: (field: string, item: T) => void): (field: string, items: T[]) => void {
  return (field, items) => {
    for (const [index, item] of items.entries()) check(`${field}.${index}`, item)
  }
}

function mapValues<T>(record: Record<string, T>, map: (key: string, value: T) => T): Record<string, T> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, map(key, value)]))
}

function pick(config: MachineConfig, keys: (keyof MachineConfig)[]): MachineConfig {
  return Object.fromEntries(
    keys.filter((key) => config[key] !== undefined).map((key) => [key, config[key]]),
  ) as MachineConfig
}

function checkInit(field: string, { exec = [], entrypoint = [], cmd = [] }: NonNullable<MachineConfig['init']>): void {
  if ([...exec, ...entrypoint, ...cmd].some((word) => word.includes('\0'))) {
    throw badRequest(`${field} must not contain NUL characters`)
  }
}

function checkStandby(field: string, id: string): void {
  if (!machineIdPattern.test(id)) throw badRequest(`${field} must be a machine id`)
}
