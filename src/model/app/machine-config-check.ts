// What a schema cannot say about the configuration of a machine, and the form in which it is kept and shown.
import { isIP } from 'node:net'
import { formatDuration, parseDuration } from '../duration.ts'
import { BerthError, badRequest } from '../errors.ts'
import { type ImageReference, parseImageReference } from '../image.ts'
import { parsePathPrefix } from '../path-prefix.ts'
import { readSignal } from '../signal.ts'
import { machineIdPattern } from './machine.ts'
import type { MachineCheck, MachineConfig, MachineMount, MachinePort, MachineService } from './machine-config.ts'
import { type Guest, readGuest } from './machine-guest.ts'

/** As it is kept: sizes, restarts and durations are filled in. */
export type KeptConfig = MachineConfig & { guest: Guest; init: NonNullable<MachineConfig['init']> }

const mostEnvironmentBytes = 1024 * 1024
const longestStopMs = 300_000

/** What was sent, fields we do not know and all. Throws 400 with the name of the field. */
export function checkConfig(sent: MachineConfig, mayUseHost: boolean): KeptConfig {
  refuseImpossible(sent as unknown as Loose)
  readImage(sent.image, mayUseHost)
  const { size, guest, processes, ...rest } = pick(sent, fields)
  const kept: KeptConfig = { ...rest, init: sent.init ?? {}, guest: readGuest(guest, size) }
  const persist = (guest as { persist_rootfs?: unknown } | undefined)?.persist_rootfs
  if (persist === 'always' || persist === 'restart') kept.rootfs = { ...kept.rootfs, persist }
  checkEnvironment('config.env', kept.env)
  checkMetadata('config.metadata', kept.metadata)
  if (kept.restart?.policy === 'spot-price')
    throw badRequest('config.restart.policy spot-price is not possible here: there are no spot prices')
  if (kept.services) kept.services = kept.services.map(keptService)
  if (kept.checks) {
    kept.checks = Object.fromEntries(
      Object.entries(kept.checks).map(([name, check]) => [name, keptCheck(`config.checks.${name}`, check)]),
    )
  }
  for (const [index, file] of (kept.files ?? []).entries()) checkFile(`config.files.${index}`, file)
  for (const [index, mount] of (kept.mounts ?? []).entries()) checkMount(`config.mounts.${index}`, mount)
  const program = processes?.[0]
  if (program)
    kept.processes = [
      { ...program, ...(program.env && { env: checkEnvironment('config.processes.0.env', program.env) }) },
    ]
  if (kept.stop_config) kept.stop_config = keptStop(kept.stop_config)
  for (const word of [...(kept.init.exec ?? []), ...(kept.init.entrypoint ?? []), ...(kept.init.cmd ?? [])]) {
    if (word.includes('\0')) throw badRequest('config.init must not hold NUL characters')
  }
  if (kept.dns) checkDns(kept.dns)
  for (const [index, id] of (kept.standbys ?? []).entries()) {
    if (!machineIdPattern.test(id)) throw badRequest(`config.standbys.${index} must be the id of a machine`)
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

type Loose = Record<string, unknown>

/** Fields that would be dropped otherwise, though the machine would then be another than the one asked for. */
function refuseImpossible(config: Loose): void {
  const guest = (config.guest ?? {}) as Loose
  const init = (config.init ?? {}) as Loose
  const dns = (config.dns ?? {}) as Loose
  const restart = (config.restart ?? {}) as Loose
  const impossible: [string, unknown, string][] = [
    ['config.containers', config.containers, 'a machine runs one program'],
    ['config.volumes', config.volumes, 'mount a volume with config.mounts'],
    ['config.cache_drive', config.cache_drive, 'mount a volume with config.mounts'],
    ['config.guest.gpus', guest.gpus, 'there are no GPUs'],
    ['config.guest.gpu_kind', guest.gpu_kind, 'there are no GPUs'],
    ['config.guest.kernel_args', guest.kernel_args, 'machines share the kernel of the host'],
    ['config.init.kernel_args', init.kernel_args, 'machines share the kernel of the host'],
    ['config.guest.host_dedication_id', guest.host_dedication_id, 'there is one host'],
    ['config.restart.gpu_bid_price', restart.gpu_bid_price, 'there are no GPUs'],
    ['config.spot', config.spot, 'there are no spot prices'],
    ['config.statics', config.statics, 'serve the files from the program'],
    ['config.dns.dns_forward_rules', dns.dns_forward_rules, 'name servers are those of the host'],
  ]
  for (const [field, value, why] of impossible) {
    const isEmpty = !value || (Array.isArray(value) && value.length === 0)
    if (!isEmpty) throw badRequest(`${field} is not possible here: ${why}`)
  }
  const processes = config.processes as unknown[] | undefined
  if (processes && processes.length > 1) {
    throw badRequest('config.processes has more than one; a machine runs one program')
  }
  for (const [index, file] of ((config.files ?? []) as Loose[]).entries()) {
    if (file.image_config)
      throw badRequest(`config.files.${index}.image_config is not possible here: give raw_value or secret_name`)
  }
}

const fields: (keyof MachineConfig)[] = [
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

function pick(config: MachineConfig, keys: (keyof MachineConfig)[]): MachineConfig {
  return Object.fromEntries(
    keys.filter((key) => config[key] !== undefined).map((key) => [key, config[key]]),
  ) as MachineConfig
}

export function checkEnvironment(field: string, env: Record<string, string> | undefined): Record<string, string> {
  let bytes = 0
  for (const [name, value] of Object.entries(env ?? {})) {
    if (name === '' || /[=\0]/.test(name))
      throw badRequest(`${field} has a name that no variable can have: ${JSON.stringify(name)}`)
    if (value.includes('\0')) throw badRequest(`${field}.${name} must not hold NUL characters`)
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value)
  }
  if (bytes > mostEnvironmentBytes) throw badRequest(`${field} is larger than ${mostEnvironmentBytes} bytes`)
  return env ?? {}
}

const mostMetadata = 100

export function checkMetadata(field: string, metadata: Record<string, string> | undefined): void {
  const entries = Object.entries(metadata ?? {})
  if (entries.length > mostMetadata) throw badRequest(`${field} has more than ${mostMetadata} entries`)
  for (const [key, value] of entries) {
    if (key === '' || key.length > 256 || key.includes('\0'))
      throw badRequest(`${field} has a key that is empty or longer than 256 characters`)
    if (value.length > 4096 || value.includes('\0')) throw badRequest(`${field}.${key} is longer than 4096 characters`)
  }
}

function keptService(service: MachineService, index: number): MachineService {
  const field = `config.services.${index}`
  for (const [at, port] of (service.ports ?? []).entries()) checkPort(`${field}.ports.${at}`, port)
  const { soft_limit: soft, hard_limit: hard } = service.concurrency ?? {}
  if (soft !== undefined && hard !== undefined && hard > 0 && soft > hard) {
    throw badRequest(`${field}.concurrency.soft_limit must not be above hard_limit`)
  }
  return {
    ...service,
    protocol: service.protocol ?? 'tcp',
    ...(service.autostop !== undefined && { autostop: keptAutostop[String(service.autostop)]! }),
    ...(service.checks && {
      checks: service.checks.map((check, at) => keptCheck(`${field}.checks.${at}`, check, service.internal_port)),
    }),
  }
}

// As clients read it.
const keptAutostop: Record<string, boolean | 'suspend'> = {
  off: false,
  false: false,
  stop: true,
  true: true,
  suspend: 'suspend',
}

const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/

function checkPort(field: string, { port, start_port: start, end_port: end, http_options }: MachinePort): void {
  for (const [at, { path_prefix, type, name }] of (http_options?.replay_cache ?? []).entries()) {
    const rule = `${field}.http_options.replay_cache.${at}`
    if (!parsePathPrefix(path_prefix)) throw badRequest(`${rule}.path_prefix must be a path, or a host name and a path`)
    if (!token.test(name)) throw badRequest(`${rule}.name must be the name of a ${type}`)
  }
  const isRange = start !== undefined || end !== undefined
  if ((port === undefined) === !isRange) throw badRequest(`${field} must have port, or start_port and end_port`)
  if (!isRange) return
  if (start === undefined || end === undefined) throw badRequest(`${field} must have both start_port and end_port`)
  if (start > end) throw badRequest(`${field}.start_port must not be above end_port`)
}

function keptCheck(field: string, check: MachineCheck, servicePort?: number): MachineCheck {
  if (check.type === undefined) throw badRequest(`${field}.type is required: tcp, http or exec`)
  if (check.type === 'exec') {
    if (!check.command?.[0]) throw badRequest(`${field}.command is required for an exec check`)
  } else if ((check.port ?? servicePort) === undefined)
    throw badRequest(`${field}.port is required for a ${check.type} check`)
  if (check.path !== undefined && (!check.path.startsWith('/') || /[\0\r\n ]/.test(check.path))) {
    throw badRequest(`${field}.path must start with a slash and hold no spaces`)
  }
  if (check.method !== undefined && !/^[a-zA-Z]{1,20}$/.test(check.method))
    throw badRequest(`${field}.method must be a method of HTTP such as GET`)
  for (const { name, values } of check.headers ?? []) {
    if (!token.test(name) || values.some((value) => /[\0\r\n]/.test(value))) {
      throw badRequest(`${field}.headers has one that HTTP does not allow: ${JSON.stringify(name)}`)
    }
  }
  const kept = { ...check }
  for (const key of ['interval', 'timeout', 'grace_period'] as const) {
    if (check[key] !== undefined) kept[key] = keptDuration(`${field}.${key}`, check[key])
  }
  return kept
}

/** Text stays as it was sent; nanoseconds become text. */
function keptDuration(field: string, duration: string | number): string {
  const ms = millisOf(duration)
  if (ms === undefined || ms < 0) throw badRequest(`${field} must be a duration such as 15s or 1m30s`)
  return typeof duration === 'string' ? duration : formatDuration(ms)
}

export function millisOf(duration: string | number | undefined): number | undefined {
  return typeof duration === 'number' ? duration / 1e6 : duration === undefined ? undefined : parseDuration(duration)
}

function keptStop(stop: NonNullable<MachineConfig['stop_config']>) {
  const kept = { ...stop }
  if (stop.signal !== undefined) kept.signal = checkSignal('config.stop_config.signal', stop.signal)
  if (stop.timeout !== undefined) {
    kept.timeout = keptDuration('config.stop_config.timeout', stop.timeout)
    if (millisOf(stop.timeout)! > longestStopMs) throw badRequest('config.stop_config.timeout must be at most 5m')
  }
  return kept
}

export function checkSignal<T extends string | number>(field: string, signal: T): T {
  try {
    readSignal(signal)
  } catch (error) {
    throw badRequest(`${field}: ${(error as Error).message}`)
  }
  return signal
}

function checkFile(field: string, file: NonNullable<MachineConfig['files']>[number]): void {
  checkPath(`${field}.guest_path`, file.guest_path)
  if ((file.raw_value === undefined) === (file.secret_name === undefined)) {
    throw badRequest(`${field} must have raw_value or secret_name`)
  }
  if (file.raw_value !== undefined && !isBase64(file.raw_value)) throw badRequest(`${field}.raw_value must be base64`)
}

const hostLabel = '[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?'
const hostWord = new RegExp(`^${hostLabel}$`)
const domain = new RegExp(`^(?=.{1,253}$)${hostLabel}(\\.${hostLabel})*\\.?$`)

/** What stands in `/etc/resolv.conf` and `/etc/hosts`: nothing of it may end a line or a word there. */
function checkDns(dns: NonNullable<MachineConfig['dns']>): void {
  const { hostname, hostname_fqdn: fqdn, nameservers = [], searches = [], options = [] } = dns
  if (hostname !== undefined && !hostWord.test(hostname))
    throw badRequest('config.dns.hostname must be 1 to 63 letters, digits and dashes')
  if (fqdn !== undefined && !domain.test(fqdn)) throw badRequest('config.dns.hostname_fqdn must be the name of a host')
  const wrong = (field: string, words: string[], isRight: (word: string) => boolean, what: string) => {
    const index = words.findIndex((word) => !isRight(word))
    if (index >= 0) throw badRequest(`config.dns.${field}.${index} must be ${what}`)
  }
  wrong('nameservers', nameservers, (word) => isIP(word.replace(/%[\w.-]+$/, '')) !== 0, 'an address')
  wrong('searches', searches, (word) => /^[A-Za-z0-9._-]{1,253}$/.test(word), 'a domain')
  wrong('options', options, (word) => /^[a-z0-9-]+(:\d+)?$/.test(word), 'an option of resolv.conf such as ndots:2')
}

function checkMount(field: string, mount: MachineMount): void {
  checkPath(`${field}.path`, mount.path)
  if (!mount.volume && !mount.name) throw badRequest(`${field}.volume is required`)
  if (mount.extend_threshold_percent) {
    if (!mount.add_size_gb) throw badRequest(`${field}.add_size_gb is required with extend_threshold_percent`)
  } else if (mount.add_size_gb || mount.size_gb_limit)
    throw badRequest(`${field}.extend_threshold_percent is required with add_size_gb and size_gb_limit`)
}

export function isBase64(text: string): boolean {
  return /^[A-Za-z0-9+/]*={0,2}$/.test(text) && text.replace(/=+$/, '').length % 4 !== 1
}

function checkPath(field: string, path: string): void {
  const parts = path.split('/')
  if (
    !path.startsWith('/') ||
    path.includes('\0') ||
    parts.includes('..') ||
    parts.every((part) => part === '' || part === '.')
  ) {
    throw badRequest(`${field} must be an absolute path below the root, without ..`)
  }
}
