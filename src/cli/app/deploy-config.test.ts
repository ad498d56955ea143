import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { UsageError } from '../errors.ts'
import { parseDeployFile } from './deploy-config.ts'

const parse = (text: string) => parseDeployFile(text, 'berth.toml')
const groups = (text: string) => Object.fromEntries(parse(text).groups)
const only = (text: string) => parse(text).groups.get('app')

describe('a deployment file', () => {
  test('may be empty', () => {
    expect(parse('')).toEqual({
      app: undefined,
      region: undefined,
      image: undefined,
      strategy: 'rolling',
      maxUnavailable: 1,
      releaseCommand: undefined,
      releaseSeconds: 300,
      waitSeconds: 300,
      groups: new Map([['app', {}]]),
      unused: [],
    })
  })

  test('sets the configuration shared by all machines', () => {
    const text = `
      app = "web"
      primary_region = "fra"
      kill_signal = "SIGTERM"
      kill_timeout = 30
      swap_size_mb = 256
      [build]
        image = "nginx:1.29"
      [env]
        MODE = "fast"
        PORT = 8080
        DEBUG = true
      [deploy]
        strategy = "immediate"
        release_command = "sh -c 'migrate now'"
        release_command_timeout = "10m"
        wait_timeout = "1m30s"`
    expect(parse(text)).toMatchObject({
      app: 'web',
      region: 'fra',
      image: 'nginx:1.29',
      strategy: 'immediate',
      maxUnavailable: 1,
      releaseCommand: ['sh', '-c', 'migrate now'],
      releaseSeconds: 600,
      waitSeconds: 90,
      unused: [],
    })
    expect(only(text)).toEqual({
      env: { MODE: 'fast', PORT: '8080', DEBUG: 'true' },
      stop_config: { signal: 'SIGTERM', timeout: '30s' },
      init: { swap_size_mb: 256 },
    })
  })

  test('turns an HTTP service into two ports', () => {
    const text = `
      image = "web"
      [http_service]
        internal_port = 3000
        force_https = true
        auto_stop_machines = "suspend"
        auto_start_machines = true
        min_machines_running = 1
        [http_service.concurrency]
          type = "requests"
          soft_limit = 200
          hard_limit = 250
        [[http_service.checks]]
          path = "/up"
          interval = "15s"
          grace_period = 5
          [http_service.checks.headers]
            X-From = "check"`
    expect(parse(text).image).toBe('web')
    expect(only(text)).toEqual({
      services: [
        {
          protocol: 'tcp',
          internal_port: 3000,
          ports: [
            { port: 80, handlers: ['http'], force_https: true },
            { port: 443, handlers: ['tls', 'http'] },
          ],
          autostart: true,
          autostop: 'suspend',
          min_machines_running: 1,
          concurrency: { type: 'requests', soft_limit: 200, hard_limit: 250 },
          checks: [
            {
              type: 'http',
              path: '/up',
              interval: '15s',
              grace_period: '5s',
              headers: [{ name: 'X-From', values: ['check'] }],
            },
          ],
        },
      ],
    })
  })

  test('combines the settings of a group with those for all groups', () => {
    const text = `
      [processes]
        web = "serve --port 80"
        worker = ["work", "hard and long"]
      [[services]]
        internal_port = 80
        processes = ["web"]
        [[services.ports]]
          port = 8000
          handlers = ["http"]
        [[services.tcp_checks]]
          interval = "10s"
      [checks.alive]
        type = "tcp"
        port = 9
      [[mounts]]
        source = "data"
        destination = "/data"
        initial_size = "10gb"
        auto_extend_size_threshold = 80
        auto_extend_size_increment = "1GB"
        auto_extend_size_limit = 20
        processes = ["worker"]
      [[vm]]
        memory = "1gb"
      [[vm]]
        size = "performance-2x"
        memory_mb = 8192
        processes = ["worker"]
      [[restart]]
        policy = "never"
        processes = ["worker"]`
    const alive = { alive: { type: 'tcp', port: 9 } }
    expect(groups(text)).toEqual({
      web: {
        init: { cmd: ['serve', '--port', '80'] },
        guest: { memory_mb: 1024 },
        checks: alive,
        services: [
          {
            protocol: 'tcp',
            internal_port: 80,
            ports: [{ port: 8000, handlers: ['http'] }],
            checks: [{ type: 'tcp', interval: '10s' }],
          },
        ],
      },
      worker: {
        init: { cmd: ['work', 'hard and long'] },
        guest: { cpu_kind: 'performance', cpus: 2, memory_mb: 8192 },
        checks: alive,
        mounts: [
          {
            name: 'data',
            path: '/data',
            size_gb: 10,
            extend_threshold_percent: 80,
            add_size_gb: 1,
            size_gb_limit: 20,
          },
        ],
        restart: { policy: 'no' },
      },
    })
  })

  test('accepts UDP services', () => {
    const text = `
      [[services]]
        protocol = "udp"
        internal_port = 5353
        auto_start_machines = true
        [[services.ports]]
          port = 53
        [[services.ports]]
          start_port = 6000
          end_port = 6003
        [services.concurrency]
          hard_limit = 100`
    expect([only(text), parse(text).unused]).toEqual([
      {
        services: [
          {
            protocol: 'udp',
            internal_port: 5353,
            autostart: true,
            concurrency: { hard_limit: 100 },
            ports: [{ port: 53 }, { start_port: 6000, end_port: 6003 }],
          },
        ],
      },
      [],
    ])
  })

  test('reports each setting that has no effect once', () => {
    const text =
      'console_command = "sh"\n[build]\ndockerfile = "D"\n[http_service]\nodd = 1\n[[statics]]\nguest_path = "/x"'
    expect(parse(text).unused.sort()).toEqual(['build.dockerfile', 'console_command', 'http_service.odd', 'statics'])
  })

  test.each([
    ['a = ', /^berth\.toml: line 1: /],
    ['app = 1', 'app must be a string'],
    ['[env]\nA = []', 'env.A must be a string, a number, or true or false'],
    ['kill_timeout = "soon"', 'kill_timeout must be a duration such as "15s" or "1m30s"'],
    ['[deploy]\nstrategy = "slow"', 'deploy.strategy must be rolling, immediate, canary or bluegreen'],
    [
      '[deploy]\nmax_unavailable = 0',
      'deploy.max_unavailable must be a number of machines, or a fraction such as 0.33',
    ],
    [
      '[deploy]\nmax_unavailable = 1.5',
      'deploy.max_unavailable must be a number of machines, or a fraction such as 0.33',
    ],
    ['[processes]\nweb = 1', 'processes.web must be a string or a list of strings'],
    ["[processes]\nweb = 'a \"b'", 'processes.web has a quote that is not closed'],
    ['[[services]]\nprotocol = "tcp"', 'services.internal_port is required'],
    ['[http_service]\ninternal_port = "a"', 'http_service.internal_port must be a whole number'],
    ['[http_service]\nprocesses = ["b"]', 'http_service.processes must name some of app, not "b"'],
    ['[http_service]\nauto_stop_machines = "later"', /auto_stop_machines must be "off"/],
    ['[[mounts]]\ndestination = "/d"', 'mounts.source is required'],
    ['[[mounts]]\nsource = "d"\ndestination = "/d"\ninitial_size = "big"', /^mounts\.initial_size must be a number/],
    ['[[vm]]\nmemory = "much"', 'vm.memory must be a size such as "512mb" or "1gb"'],
    ['env = 3', 'env must be a table'],
    ['services = [1]', 'services must be a table or a list of tables'],
  ])('rejects %j', (text, message) => {
    expect(() => parse(text)).toThrow(UsageError)
    expect(() => parse(text)).toThrow(message)
  })

  test.each([
    ['', 1],
    ['max_unavailable = 3', 3],
    ['max_unavailable = 0.5', 0.5],
  ])('reads how many machines may be unavailable: %s', (text, expected) => {
    expect(parse(`[deploy]\n${text}`).maxUnavailable).toBe(expected)
  })

  test.each([
    ['', 'rolling'],
    ['strategy = "rolling"', 'rolling'],
    ['strategy = "canary"', 'canary'],
    ['strategy = "bluegreen"', 'bluegreen'],
  ])('reads the strategy: %s', (text, expected) => {
    expect(parse(`[deploy]\n${text}`).strategy).toBe(expected)
  })

  test('is parsed or rejected, whatever values it contains', () => {
    const names = ['app', 'env', 'build', 'deploy', 'processes', 'services', 'http_service', 'checks', 'mounts', 'vm']
    const keys = [...names, 'restart', 'ports', 'internal_port', 'size', 'headers', 'kill_timeout', '__proto__', 'a']
    const scalar = fc.oneof(
      fc.string(),
      fc.integer(),
      fc.boolean(),
      fc.double({ noNaN: true, noDefaultInfinity: true }),
    )
    const { value } = fc.letrec<{ value: unknown; table: unknown }>((tie) => ({
      value: fc.oneof({ maxDepth: 4 }, scalar, fc.array(scalar), tie('table')),
      table: fc.dictionary(fc.constantFrom(...keys), tie('value'), { maxKeys: 4 }),
    }))
    const file = fc.dictionary(fc.constantFrom(...keys), value, { maxKeys: 6 })
    fc.assert(
      fc.property(file, (content) => {
        expectReadOrRefused(
          Object.entries(content)
            .map(([key, each]) => `${key} = ${inline(each)}`)
            .join('\n'),
        )
      }),
      { numRuns: 1000 },
    )
  })

  test('is parsed or rejected, even when it is not TOML', () => {
    fc.assert(fc.property(fc.string({ unit: 'binary' }), expectReadOrRefused))
  })
})

function inline(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(inline).join(', ')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  return `{ ${Object.entries(value)
    .map(([key, each]) => `${key} = ${inline(each)}`)
    .join(', ')} }`
}

function expectReadOrRefused(text: string): void {
  try {
    JSON.stringify([...parse(text).groups])
  } catch (error) {
    expect(error).toBeInstanceOf(UsageError)
  }
}
