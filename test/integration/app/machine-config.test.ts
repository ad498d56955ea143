import fc from 'fast-check'
import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { call } = platform
const machines = machinesOf(platform, 'shop')
const { create, path } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('bad configurations', () => {
  test.each([
    [{ image: '' }, 'config.image'],
    [{ image: 'A B' }, 'config.image'],
    [{ image: 7 }, 'config.image'],
    [{ guest: { memory_mb: 128 } }, 'config.guest.memory_mb'],
    [{ guest: { memory_mb: 300 } }, 'config.guest.memory_mb'],
    [{ guest: { memory_mb: 4096 } }, 'config.guest.memory_mb'],
    [{ guest: { cpus: 3 } }, 'config.guest.cpus'],
    [{ guest: { cpu_kind: 'gold' } }, 'config.guest.cpu_kind'],
    [{ guest: {}, size: 'shared-cpu-1x' }, 'config.size'],
    [{ size: 'huge' }, 'config.size'],
    [{ guest: { gpus: 1 } }, 'config.guest.gpus'],
    [{ guest: { gpu_kind: 'a100' } }, 'config.guest.gpu_kind'],
    [{ containers: [{ name: 'a' }] }, 'config.containers.0.image'],
    [{ processes: [{}, {}] }, 'config.processes'],
    [{ env: { 'A=B': 'x' } }, 'config.env'],
    [{ env: { A: 1 } }, 'config.env.A'],
    [{ env: { A: '\0' } }, 'config.env.A'],
    [{ services: [{}] }, 'config.services.0.internal_port'],
    [{ services: [{ internal_port: 70_000 }] }, 'config.services.0.internal_port'],
    [{ services: [{ internal_port: 80, ports: [{}] }] }, 'config.services.0.ports.0'],
    [{ services: [{ internal_port: 80, ports: [{ start_port: 9, end_port: 8 }] }] }, 'start_port'],
    [
      { services: [{ internal_port: 80, ports: [{ port: 80, start_port: 8, end_port: 9 }] }] },
      'config.services.0.ports.0',
    ],
    [{ services: [{ internal_port: 80, ports: [{ port: 80, handlers: ['ftp'] }] }] }, 'handlers'],
    [{ services: [{ internal_port: 80, autostop: 'maybe' }] }, 'autostop'],
    [{ services: [{ internal_port: 80, concurrency: { soft_limit: 9, hard_limit: 8 } }] }, 'soft_limit'],
    [{ checks: { a: { type: 'http' } } }, 'config.checks.a.port'],
    [{ checks: { a: { port: 80 } } }, 'config.checks.a.type'],
    [{ checks: { a: { type: 'exec' } } }, 'config.checks.a.command'],
    [{ checks: { a: { type: 'tcp', port: 80, interval: 'soon' } } }, 'config.checks.a.interval'],
    [{ checks: { a: { type: 'http', port: 80, path: 'x' } } }, 'config.checks.a.path'],
    [{ files: [{ guest_path: 'etc/x', raw_value: '' }] }, 'config.files.0.guest_path'],
    [{ files: [{ guest_path: '/../x', raw_value: '' }] }, 'config.files.0.guest_path'],
    [{ files: [{ guest_path: '/x', raw_value: '***' }] }, 'config.files.0.raw_value'],
    [{ files: [{ guest_path: '/x' }] }, 'config.files.0'],
    [{ mounts: [{ path: '/', volume: 'vol_x' }] }, 'config.mounts.0.path'],
    [{ mounts: [{ path: '/a' }] }, 'config.mounts.0.volume'],
    [{ mounts: [{ path: '/a', volume: 'vol_x', extend_threshold_percent: 80 }] }, 'config.mounts.0.add_size_gb'],
    [{ mounts: [{ path: '/a', volume: 'vol_x', size_gb_limit: 8 }] }, 'config.mounts.0.extend_threshold_percent'],
    [
      {
        mounts: [
          { path: '/a', volume: 'a' },
          { path: '/b', volume: 'b' },
        ],
      },
      'config.mounts',
    ],
    [{ restart: { policy: 'sometimes' } }, 'config.restart.policy'],
    [{ restart: { policy: 'spot-price' } }, 'config.restart.policy'],
    [{ schedule: 'yearly' }, 'config.schedule'],
    [{ stop_config: { signal: 'SIGNOPE' } }, 'config.stop_config.signal'],
    [{ stop_config: { timeout: '10m' } }, 'config.stop_config.timeout'],
    [{ dns: { hostname: '-a' } }, 'config.dns.hostname'],
    [{ dns: { hostname_fqdn: 'a..b' } }, 'config.dns.hostname_fqdn'],
    [{ dns: { nameservers: ['fdaa::3', 'example.com'] } }, 'config.dns.nameservers.1'],
    [{ dns: { searches: ['a\nnameserver 192.0.2.1'] } }, 'config.dns.searches.0'],
    [{ dns: { options: ['ndots: 2'] } }, 'config.dns.options.0'],
    [{ dns: { options: ['rotate', { name: 'ndots', value: '2\nnameserver 192.0.2.1' }] } }, 'config.dns.options.1'],
    [{ dns: { options: [{ value: '2' }] } }, 'config.dns.options.0'],
    [{ dns: { options: [{ name: 'ndots', value: 2 }] } }, 'config.dns.options.0'],
    [{ dns: { dns_forward_rules: [{ basename: 'x', addr: '192.0.2.1' }] } }, 'config.dns.dns_forward_rules'],
    [{ standbys: ['web-1'] }, 'config.standbys.0'],
    [{ cache_drive: { size_mb: 100 } }, 'config.cache_drive'],
    [{ containers: [{ name: 'a', image: 'B C' }] }, 'config.containers.0.image'],
    [{ statics: [{ guest_path: '/a', url_prefix: '/b' }] }, 'config.statics'],
    [{ metadata: { a: 1 } }, 'config.metadata.a'],
  ])('%j is refused with 400, naming the field', async (config, field) => {
    expect(await create({}, config)).toMatchObject({ status: 400, body: { error: expect.stringContaining(field) } })
    expect(await platform.sql('select 1 from machine')).toEqual([])
  })

  const rule = { path_prefix: '/', ttl_seconds: 10, type: 'cookie', name: 'sid' }
  test.each([
    [{ idle_timeout: 0 }, 'idle_timeout must be >= 1'],
    [{ idle_timeout: '5s' }, 'idle_timeout must be an integer'],
    [{ headers_read_timeout: 700_000 }, 'headers_read_timeout must be <= 604800'],
    [{ replay_cache: [{ ...rule, ttl_seconds: 9 }] }, 'replay_cache.0.ttl_seconds must be >= 10'],
    [{ replay_cache: [rule, { ...rule, type: 'query' }] }, 'replay_cache.1.type must be one of cookie, header'],
    [{ replay_cache: [{ ...rule, path_prefix: 'api' }] }, 'replay_cache.0.path_prefix must be a path'],
    [{ replay_cache: [{ ...rule, name: 'a b' }] }, 'replay_cache.0.name must be the name of a cookie'],
    [{ replay_cache: [{ ...rule, name: undefined }] }, 'replay_cache.0.name is required'],
  ])('the HTTP options %j are refused with 400, naming the field', async (options, sentence) => {
    const services = [{ internal_port: 80, ports: [{ port: 80, handlers: ['http'], http_options: options }] }]
    expect(await create({}, { services })).toMatchObject({
      status: 400,
      body: { error: expect.stringContaining(`config.services.0.ports.0.http_options.${sentence}`) },
    })
  })

  test('HTTP options are stored unchanged', async () => {
    const options = { compress: true, h2_backend: true, idle_timeout: 5, headers_read_timeout: 5, replay_cache: [rule] }
    const services = [{ internal_port: 80, ports: [{ port: 80, handlers: ['http'], http_options: options }] }]
    const made = await create({}, { services })
    expect(made).toMatchObject({
      status: 200,
      body: { config: { services: [{ ports: [{ http_options: options }] }] } },
    })
  })

  test('options of resolv.conf are accepted as objects and as text, and stored as objects', async () => {
    const options = [{ name: 'ndots', value: '2' }, { name: 'rotate', value: '' }, 'timeout:1', 'edns0']
    const { body } = await create({}, { dns: { options } })
    const stored = [
      { name: 'ndots', value: '2' },
      { name: 'rotate' },
      { name: 'timeout', value: '1' },
      { name: 'edns0' },
    ]
    expect(body.config.dns.options).toEqual(stored)
    expect((await create({}, body.config)).body.config.dns.options).toEqual(stored)
    await machines.settle()
    expect(platform.fake.machines.machines.get(body.id)!.spec.dns?.options).toEqual([
      ...['ndots:2', 'rotate', 'timeout:1', 'edns0'],
    ])
  })

  test('any input is accepted or refused, and never causes an internal error', async () => {
    const fields = fc.constantFrom(
      ...[
        'image',
        'env',
        'init',
        'guest',
        'size',
        'mounts',
        'services',
        'checks',
        'files',
        'restart',
        'dns',
        'metadata',
      ],
      ...['processes', 'stop_config', 'statics', 'schedule', 'rootfs', 'containers', 'unknown', '__proto__'],
    )
    const config = fc.dictionary(fields, fc.jsonValue({ maxDepth: 4 }))
    const extra = fc.record(
      { name: fc.jsonValue(), region: fc.jsonValue(), lease_ttl: fc.jsonValue() },
      { requiredKeys: [] },
    )
    await fc.assert(
      fc.asyncProperty(config, extra, async (sent, others) => {
        const { status } = await create({ ...others, skip_launch: true }, sent)
        expect([200, 400, 404, 409, 412, 422]).toContain(status)
      }),
      { numRuns: 150 },
    )
  })

  test('a missing configuration or image is reported', async () => {
    expect(await call('POST', path, { body: {} })).toMatchObject({ status: 400, body: { error: 'config is required' } })
    expect(await call('POST', path, { body: { config: {} } })).toMatchObject({
      status: 400,
      body: { error: 'config.image is required' },
    })
  })

  test('unknown fields and nulls count as absent; sizes, durations and autostop are shown as clients read them', async () => {
    const config = {
      size: 'performance-2x',
      env: null,
      unknown: 1,
      stop_config: { timeout: 15_000_000_000, signal: 'SIGTERM' },
      services: [
        { internal_port: 80, autostop: 'stop', force_instance_key: null },
        { internal_port: 81, autostop: 'off' },
        { internal_port: 82, autostop: 'suspend' },
      ],
      checks: { a: { type: 'tcp', port: 80, interval: 90_000_000_000, timeout: '2s' } },
    }
    expect((await create({ skip_launch: true, lsvd: true }, config)).body.config).toEqual({
      image: 'nginx',
      init: {},
      guest: { cpu_kind: 'performance', cpus: 2, memory_mb: 4096 },
      stop_config: { timeout: '15s', signal: 'SIGTERM' },
      services: [
        { internal_port: 80, autostop: true, protocol: 'tcp' },
        { internal_port: 81, autostop: false, protocol: 'tcp' },
        { internal_port: 82, autostop: 'suspend', protocol: 'tcp' },
      ],
      checks: { a: { type: 'tcp', port: 80, interval: '1m30s', timeout: '2s' } },
    })
  })
})
