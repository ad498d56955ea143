// What a deployment file says, as configurations of machines. The names are those of fly.toml, so that an existing one
// works as far as it uses what is known here; whatever else it holds is named in a warning.
import { splitWords } from '../../model/words.ts'
import { guestOf, present } from './machine-config.ts'
import type { MachineConfig, Mount, Service } from './machine-find.ts'
import { plain, type Reader, readTables } from './toml.ts'

export interface DeployFile {
  app: string | undefined
  region: string | undefined
  image: string | undefined
  /** How many machines may be away at once: a number, a part of all of them, or all. */
  atOnce: number | 'all'
  releaseCommand: string[] | undefined
  releaseSeconds: number
  waitSeconds: number
  /** By name; `app` when the file names none. Without an image. */
  groups: Map<string, GroupConfig>
  /** Names of settings that have no effect here. */
  unknown: string[]
}

export type GroupConfig = Omit<MachineConfig, 'image'>

const defaultGroup = 'app'
const presetSeconds = 300

export function parseDeployFile(text: string, file: string): DeployFile {
  const reader = readTables(text, file)
  const build = reader.table('build')
  const deploy = reader.table('deploy')
  const parsed = {
    app: reader.text('app'),
    region: reader.text('primary_region'),
    image: reader.text('image') ?? build.text('image'),
    atOnce: readAtOnce(deploy),
    releaseCommand: deploy.has('release_command') ? readWords(deploy, 'release_command') : undefined,
    releaseSeconds: deploy.seconds('release_command_timeout') ?? presetSeconds,
    waitSeconds: deploy.seconds('wait_timeout') ?? presetSeconds,
    groups: readGroupConfigs(reader),
  }
  return { ...parsed, unknown: reader.unread() }
}

type ForGroups<T> = [value: T, groups: string[]]

function readGroupConfigs(reader: Reader): Map<string, GroupConfig> {
  const processes = reader.table('processes')
  const commands = Object.keys(processes.rest()).map((name) => [name, readWords(processes, name)] as const)
  const names = commands.length > 0 ? commands.map(([name]) => name) : [defaultGroup]
  const of = (table: Reader): string[] => {
    const groups = table.words('processes') ?? []
    const unknown = groups.find((name) => !names.includes(name))
    if (unknown !== undefined)
      throw table.wrong('processes', `names "${unknown}", which is none of ${names.join(', ')}`)
    return groups
  }
  const readEach = <T>(tables: Reader[], read: (table: Reader) => T) =>
    tables.map((table): ForGroups<T> => [read(table), of(table)])

  const common = readCommon(reader)
  const http = reader.has('http_service') ? [reader.table('http_service')] : []
  const services = [...readEach(http, readHttpService), ...readEach(reader.tables('services'), readService)]
  const checks = reader.tableOfTables('checks').map(([name, table]): ForGroups<[string, object]> => {
    return [[name, readCheck(table)], of(table)]
  })
  const mounts = readEach(reader.tables('mounts'), readMount)
  const guests = readEach(reader.tables('vm'), readGuest)
  const restarts = readEach(reader.tables('restart'), readRestart)
  return new Map(
    names.map((name) => {
      const own = allOf(services, name)
      const ownChecks = allOf(checks, name)
      const mount = bestOf(mounts, name)
      const restart = bestOf(restarts, name)
      const cmd = commands.find(([group]) => group === name)?.[1]
      const init = { ...common.init, ...(cmd && { cmd }) }
      const config: GroupConfig = {
        ...common,
        ...(Object.keys(init).length > 0 && { init }),
        ...bestOf(guests, name),
        ...(own.length > 0 && { services: own }),
        ...(ownChecks.length > 0 && { checks: Object.fromEntries(ownChecks) }),
        ...(mount && { mounts: [mount] }),
        ...(restart && { restart }),
      }
      return [name, structuredClone(config)]
    }),
  )
}

/** What names no group is for all. */
function allOf<T>(given: ForGroups<T>[], group: string): T[] {
  return given.filter(([, of]) => of.length === 0 || of.includes(group)).map(([value]) => value)
}

/** What names the group goes before what is for all. */
function bestOf<T>(given: ForGroups<T>[], group: string): T | undefined {
  return (given.find(([, of]) => of.includes(group)) ?? given.find(([, of]) => of.length === 0))?.[0]
}

/** Whatever is the same for all groups. */
function readCommon(reader: Reader): GroupConfig {
  const signal = reader.text('kill_signal')
  const timeout = reader.duration('kill_timeout')
  const swap = reader.number('swap_size_mb')
  const stop = present({ signal, timeout })
  const env = reader.table('env')
  const variables = Object.keys(env.rest()).map((name) => [name, env.scalar(name)] as const)
  return {
    ...(variables.length > 0 && { env: Object.fromEntries(variables) }),
    ...(Object.keys(stop).length > 0 && { stop_config: stop }),
    ...(swap !== undefined && { init: { swap_size_mb: swap } }),
  }
}

function readAtOnce(deploy: Reader): number | 'all' {
  const strategy = deploy.text('strategy') ?? 'rolling'
  const given = deploy.raw('max_unavailable')
  const away = given === undefined ? 1 : Number(plain(given))
  if (!(away > 0) || (away > 1 && !Number.isSafeInteger(away))) {
    throw deploy.wrong('max_unavailable', 'is a number of machines, or a part of them such as 0.33')
  }
  if (strategy === 'immediate') return 'all'
  // The others ask for no less than this gives.
  if (['rolling', 'canary', 'bluegreen'].includes(strategy)) return away
  throw deploy.wrong('strategy', 'is one of rolling, immediate, canary and bluegreen')
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
  const internal = http.number('internal_port') ?? presetInternalPort
  const checks = http.tables('checks').map((check) => ({ type: 'http', ...readCheck(check) }))
  return {
    protocol: 'tcp',
    internal_port: internal,
    ports,
    ...readBalance(http),
    ...(checks.length > 0 && { checks }),
  }
}

const presetInternalPort = 8080

function readService(service: Reader): Service {
  const internal = service.number('internal_port')
  if (internal === undefined) throw service.wrong('internal_port', 'is required')
  const ports = service.tables('ports').map((port) => {
    const read = {
      port: port.number('port'),
      start_port: port.number('start_port'),
      end_port: port.number('end_port'),
      handlers: port.words('handlers'),
      force_https: port.flag('force_https'),
      http_options: port.raw('http_options'),
      tls_options: port.raw('tls_options'),
      proxy_proto_options: port.raw('proxy_proto_options'),
    }
    return present(read)
  })
  const checks = [
    ...service.tables('http_checks').map((check) => ({ ...readCheck(check), type: 'http' })),
    ...service.tables('tcp_checks').map((check) => ({ ...readCheck(check), type: 'tcp' })),
  ]
  return {
    protocol: service.text('protocol') ?? 'tcp',
    internal_port: internal,
    ports,
    ...readBalance(service),
    ...(checks.length > 0 && { checks }),
  }
}

function readBalance(service: Reader): object {
  const concurrency = service.has('concurrency') ? service.table('concurrency') : undefined
  const stop = service.raw('auto_stop_machines')
  if (stop !== undefined && ![true, false, 'off', 'stop', 'suspend'].includes(stop as string)) {
    throw service.wrong('auto_stop_machines', 'is one of "off", "stop" and "suspend"')
  }
  return present({
    autostart: service.flag('auto_start_machines'),
    autostop: stop === true ? 'stop' : stop === false ? 'off' : stop,
    min_machines_running: service.number('min_machines_running'),
    concurrency:
      concurrency &&
      present({
        type: concurrency.text('type'),
        soft_limit: concurrency.number('soft_limit'),
        hard_limit: concurrency.number('hard_limit'),
      }),
  })
}

function readCheck(check: Reader): object {
  const headers = check.has('headers') ? check.table('headers') : undefined
  const names = Object.keys(headers?.rest() ?? {})
  return present({
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
    command: check.words('command'),
    headers: names.length > 0 ? names.map((name) => ({ name, values: [headers!.scalar(name)] })) : undefined,
  })
}

function readMount(mount: Reader): Mount {
  const path = mount.text('destination')
  const name = mount.text('source')
  if (path === undefined) throw mount.wrong('destination', 'is required')
  if (name === undefined) throw mount.wrong('source', 'is required')
  const more = present({
    size_gb: gigabytes(mount, 'initial_size'),
    extend_threshold_percent: mount.number('auto_extend_size_threshold'),
    add_size_gb: gigabytes(mount, 'auto_extend_size_increment'),
    size_gb_limit: gigabytes(mount, 'auto_extend_size_limit'),
  })
  return { path, name, ...more }
}

function gigabytes(mount: Reader, name: string): number | undefined {
  const size = mount.raw(name)
  if (size === undefined) return undefined
  const match = /^(\d+)\s*(gb|g|gib)?$/i.exec(plain(size))
  if (!match) throw mount.wrong(name, 'is a number of gigabytes, such as "10gb"')
  return Number(match[1])
}

function readGuest(vm: Reader): Pick<MachineConfig, 'size' | 'guest'> {
  const memory = vm.raw('memory')
  return guestOf(vm.text('size'), {
    cpu_kind: vm.text('cpu_kind'),
    cpus: vm.number('cpus'),
    memory_mb: vm.number('memory_mb') ?? (memory === undefined ? undefined : megabytes(vm, memory)),
  })
}

function megabytes(vm: Reader, memory: unknown): number {
  const match = /^(\d+(?:\.\d+)?)\s*(mb|gb)?$/i.exec(plain(memory))
  if (!match) throw vm.wrong('memory', 'is a size such as "512mb" or "1gb"')
  return Math.round(Number(match[1]) * (match[2]?.toLowerCase() === 'gb' ? 1024 : 1))
}

function readRestart(restart: Reader): object {
  const given = restart.text('policy')
  const policy = given === 'never' ? 'no' : given
  return present({ policy, max_retries: restart.number('retries') ?? restart.number('max_retries') })
}

function readWords(table: Reader, name: string): string[] {
  const value = table.raw(name)
  if (Array.isArray(value) && value.every((word) => typeof word === 'string')) return value
  const words = typeof value === 'string' ? splitWords(value) : undefined
  if (words) return words
  throw table.wrong(
    name,
    typeof value === 'string' ? 'has a quote that is not closed' : 'must be a string or a list of strings',
  )
}
