// Turns a deployment file into machine configurations. The settings have the names of fly.toml, so an existing fly.toml
// works. Settings that have no effect here are reported, and the caller warns about them.
import { splitWords } from '../../model/words.ts'
import { omitUndefined, parseGuest } from './machine-config.ts'
import type { MachineConfig, Mount, Service } from './machine-find.ts'
import { type Strategy, strategies } from './release.ts'
import { parseToml, type Reader, scalarText } from './toml.ts'

export interface DeployFile {
  app: string | undefined
  region: string | undefined
  image: string | undefined
  strategy: Strategy
  /** How many machines a rolling update may make unavailable at once: a number, or a fraction of all machines. */
  maxUnavailable: number
  releaseCommand: string[] | undefined
  releaseSeconds: number
  waitSeconds: number
  /** Configurations by process group. A file without processes has one group, `app`. */
  groups: Map<string, GroupConfig>
  /** Names of settings that have no effect here. */
  unused: string[]
}

export type GroupConfig = Omit<MachineConfig, 'image'>

const defaultGroup = 'app'
const defaultTimeoutSeconds = 300

export function parseDeployFile(text: string, file: string): DeployFile {
  const reader = parseToml(text, file)
  const build = reader.table('build')
  const deploy = reader.table('deploy')
  const parsed = {
    app: reader.text('app'),
    region: reader.text('primary_region'),
    image: reader.text('image') ?? build.text('image'),
    strategy: readStrategy(deploy),
    maxUnavailable: readMaxUnavailable(deploy),
    releaseCommand: deploy.has('release_command') ? readCommand(deploy, 'release_command') : undefined,
    releaseSeconds: deploy.seconds('release_command_timeout') ?? defaultTimeoutSeconds,
    waitSeconds: deploy.seconds('wait_timeout') ?? defaultTimeoutSeconds,
    groups: readGroupConfigs(reader),
  }
  return { ...parsed, unused: reader.unreadNames() }
}

/** A value and the process groups it is for. An empty list stands for all groups. */
type GroupValue<T> = [value: T, groups: string[]]

interface Sections {
  shared: GroupConfig
  commands: Map<string, string[]>
  services: GroupValue<Service>[]
  checks: GroupValue<[string, object]>[]
  mounts: GroupValue<Mount>[]
  guests: GroupValue<Pick<MachineConfig, 'size' | 'guest'>>[]
  restarts: GroupValue<object>[]
}

function readGroupConfigs(reader: Reader): Map<string, GroupConfig> {
  const processes = reader.table('processes')
  const commands = new Map(Object.keys(processes.entries()).map((name) => [name, readCommand(processes, name)]))
  const names = commands.size > 0 ? [...commands.keys()] : [defaultGroup]
  const sections = readSections(reader, commands, names)
  return new Map(names.map((name) => [name, structuredClone(groupConfig(sections, name))]))
}

function readSections(reader: Reader, commands: Map<string, string[]>, names: string[]): Sections {
  const readEach = <T>(tables: Reader[], read: (table: Reader) => T) =>
    tables.map((table): GroupValue<T> => [read(table), readGroupNames(table, names)])
  const shared = readSharedConfig(reader)
  const http = reader.has('http_service') ? [reader.table('http_service')] : []
  return {
    shared,
    commands,
    services: [...readEach(http, readHttpService), ...readEach(reader.tables('services'), readService)],
    checks: reader.tableOfTables('checks').map(([name, table]) => {
      return [[name, readCheck(table)], readGroupNames(table, names)]
    }),
    mounts: readEach(reader.tables('mounts'), readMount),
    guests: readEach(reader.tables('vm'), readGuest),
    restarts: readEach(reader.tables('restart'), readRestart),
  }
}

function readGroupNames(table: Reader, names: string[]): string[] {
  const groups = table.strings('processes') ?? []
  const unknown = groups.find((name) => !names.includes(name))
  if (unknown === undefined) return groups
  throw table.error('processes', `must name some of ${names.join(', ')}, not "${unknown}"`)
}

function groupConfig({ shared, commands, ...sections }: Sections, group: string): GroupConfig {
  const services = valuesForGroup(sections.services, group)
  const checks = valuesForGroup(sections.checks, group)
  const mount = valueForGroup(sections.mounts, group)
  const restart = valueForGroup(sections.restarts, group)
  const cmd = commands.get(group)
  const init = { ...shared.init, ...(cmd && { cmd }) }
  return {
    ...shared,
    ...(Object.keys(init).length > 0 && { init }),
    ...valueForGroup(sections.guests, group),
    ...(services.length > 0 && { services }),
    ...(checks.length > 0 && { checks: Object.fromEntries(checks) }),
    ...(mount && { mounts: [mount] }),
    ...(restart && { restart }),
  }
}

/** Values that name no group apply to all groups. */
function valuesForGroup<T>(given: GroupValue<T>[], group: string): T[] {
  return given.filter(([, of]) => of.length === 0 || of.includes(group)).map(([value]) => value)
}

/** A value that names the group takes precedence over one for all groups. */
function valueForGroup<T>(given: GroupValue<T>[], group: string): T | undefined {
  return (given.find(([, of]) => of.includes(group)) ?? given.find(([, of]) => of.length === 0))?.[0]
}

/** Reads the settings that apply to all groups. */
function readSharedConfig(reader: Reader): GroupConfig {
  const signal = reader.text('kill_signal')
  const timeout = reader.duration('kill_timeout')
  const swap = reader.number('swap_size_mb')
  const stop = omitUndefined({ signal, timeout })
  const env = reader.table('env')
  const variables = Object.keys(env.entries()).map((name) => [name, env.scalar(name)] as const)
  return {
    ...(variables.length > 0 && { env: Object.fromEntries(variables) }),
    ...(Object.keys(stop).length > 0 && { stop_config: stop }),
    ...(swap !== undefined && { init: { swap_size_mb: swap } }),
  }
}

function readStrategy(deploy: Reader): Strategy {
  const given = deploy.text('strategy') ?? 'rolling'
  const strategy = strategies.find((name) => name === given)
  if (!strategy) throw deploy.error('strategy', 'must be rolling, immediate, canary or bluegreen')
  return strategy
}

function readMaxUnavailable(deploy: Reader): number {
  const given = deploy.raw('max_unavailable')
  const maxAway = given === undefined ? 1 : Number(scalarText(given))
  if (!(maxAway > 0) || (maxAway > 1 && !Number.isSafeInteger(maxAway))) {
    throw deploy.error('max_unavailable', 'must be a number of machines, or a fraction such as 0.33')
  }
  return maxAway
}

function readHttpService(http: Reader): Service {
  const forceHttps = http.flag('force_https')
  const options = http.raw('http_options')
  const tls = http.raw('tls_options')
  const shared = { ...(options !== undefined && { http_options: options }) }
  const ports = [
    { port: 80, handlers: ['http'], ...(forceHttps && { force_https: true }), ...shared },
    { port: 443, handlers: ['tls', 'http'], ...shared, ...(tls !== undefined && { tls_options: tls }) },
  ]
  const internal = http.number('internal_port') ?? defaultInternalPort
  const checks = http.tables('checks').map((check) => ({ type: 'http', ...readCheck(check) }))
  return {
    protocol: 'tcp',
    internal_port: internal,
    ports,
    ...readScaling(http),
    ...(checks.length > 0 && { checks }),
  }
}

const defaultInternalPort = 8080

function readService(service: Reader): Service {
  const internal = service.number('internal_port')
  if (internal === undefined) throw service.error('internal_port', 'is required')
  const ports = service.tables('ports').map((port) => {
    const read = {
      port: port.number('port'),
      start_port: port.number('start_port'),
      end_port: port.number('end_port'),
      handlers: port.strings('handlers'),
      force_https: port.flag('force_https'),
      http_options: port.raw('http_options'),
      tls_options: port.raw('tls_options'),
      proxy_proto_options: port.raw('proxy_proto_options'),
    }
    return omitUndefined(read)
  })
  const checks = [
    ...service.tables('http_checks').map((check) => ({ ...readCheck(check), type: 'http' })),
    ...service.tables('tcp_checks').map((check) => ({ ...readCheck(check), type: 'tcp' })),
  ]
  return {
    protocol: service.text('protocol') ?? 'tcp',
    internal_port: internal,
    ports,
    ...readScaling(service),
    ...(checks.length > 0 && { checks }),
  }
}

function readScaling(service: Reader): object {
  const concurrency = service.has('concurrency') ? service.table('concurrency') : undefined
  const stop = service.raw('auto_stop_machines')
  if (stop !== undefined && ![true, false, 'off', 'stop', 'suspend'].includes(stop as string)) {
    throw service.error('auto_stop_machines', 'must be "off", "stop" or "suspend"')
  }
  return omitUndefined({
    autostart: service.flag('auto_start_machines'),
    autostop: stop === true ? 'stop' : stop === false ? 'off' : stop,
    min_machines_running: service.number('min_machines_running'),
    concurrency:
      concurrency &&
      omitUndefined({
        type: concurrency.text('type'),
        soft_limit: concurrency.number('soft_limit'),
        hard_limit: concurrency.number('hard_limit'),
      }),
  })
}

function readCheck(check: Reader): object {
  const headers = check.has('headers') ? check.table('headers') : undefined
  const names = Object.keys(headers?.entries() ?? {})
  return omitUndefined({
    type: check.text('type'),
    port: check.number('port'),
    interval: check.duration('interval'),
    timeout: check.duration('timeout'),
    grace_period: check.duration('grace_period'),
    method: check.text('method'),
    path: check.text('path'),
    protocol: check.text('protocol'),
    tls_skip_verify: check.flag('tls_skip_verify'),
    tls_server_name: check.text('tls_server_name'),
    command: check.strings('command'),
    headers: names.length > 0 ? names.map((name) => ({ name, values: [headers!.scalar(name)] })) : undefined,
  })
}

function readMount(mount: Reader): Mount {
  const path = mount.text('destination')
  const name = mount.text('source')
  if (path === undefined) throw mount.error('destination', 'is required')
  if (name === undefined) throw mount.error('source', 'is required')
  const more = omitUndefined({
    size_gb: readGigabytes(mount, 'initial_size'),
    extend_threshold_percent: mount.number('auto_extend_size_threshold'),
    add_size_gb: readGigabytes(mount, 'auto_extend_size_increment'),
    size_gb_limit: readGigabytes(mount, 'auto_extend_size_limit'),
  })
  return { path, name, ...more }
}

function readGigabytes(mount: Reader, name: string): number | undefined {
  const size = mount.raw(name)
  if (size === undefined) return undefined
  const match = /^(\d+)\s*(gb|g|gib)?$/i.exec(scalarText(size))
  if (!match) throw mount.error(name, 'must be a number of gigabytes, such as "10gb"')
  return Number(match[1])
}

function readGuest(vm: Reader): Pick<MachineConfig, 'size' | 'guest'> {
  const memory = vm.raw('memory')
  return parseGuest(vm.text('size'), {
    cpu_kind: vm.text('cpu_kind'),
    cpus: vm.number('cpus'),
    memory_mb: vm.number('memory_mb') ?? (memory === undefined ? undefined : readMegabytes(vm, memory)),
  })
}

function readMegabytes(vm: Reader, memory: unknown): number {
  const match = /^(\d+(?:\.\d+)?)\s*(mb|gb)?$/i.exec(scalarText(memory))
  if (!match) throw vm.error('memory', 'must be a size such as "512mb" or "1gb"')
  return Math.round(Number(match[1]) * (match[2]?.toLowerCase() === 'gb' ? 1024 : 1))
}

function readRestart(restart: Reader): object {
  const given = restart.text('policy')
  const policy = given === 'never' ? 'no' : given
  return omitUndefined({ policy, max_retries: restart.number('retries') ?? restart.number('max_retries') })
}

function readCommand(table: Reader, name: string): string[] {
  const value = table.raw(name)
  if (Array.isArray(value) && value.every((word) => typeof word === 'string')) return value
  const words = typeof value === 'string' ? splitWords(value) : undefined
  if (words) return words
  throw table.error(
    name,
    typeof value === 'string' ? 'has a quote that is not closed' : 'must be a string or a list of strings',
  )
}
