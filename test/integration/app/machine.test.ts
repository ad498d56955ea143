import fc from 'fast-check'
import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { fake, call } = platform
const machines = machinesOf(platform, 'shop')
const { create, started, settle, look, state, events, path } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('creating a machine', () => {
  test('returns all fields and starts it', async () => {
    const made = await create({ name: 'web' }, { env: { A: 'b' } })
    expect(made.body).toEqual({
      id: expect.stringMatching(/^[0-9a-f]{14}$/),
      name: 'web',
      state: 'created',
      region: 'local',
      instance_id: expect.stringMatching(/^[0-9A-HJKMNP-TV-Z]{26}$/),
      version: made.body.instance_id,
      private_ip: expect.stringMatching(/^fdaa:/),
      image_ref: { registry: 'docker.io', repository: 'library/nginx', tag: 'latest', digest: '', labels: {} },
      created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
      updated_at: expect.stringMatching(/Z$/),
      cordoned: false,
      config: { image: 'nginx', env: { A: 'b' }, init: {}, guest: { cpu_kind: 'shared', cpus: 1, memory_mb: 256 } },
      incomplete_config: null,
      events: expect.any(Array),
      checks: [],
      host_status: 'ok',
    })
    expect(made.status).toBe(200)
    await settle()
    expect(fake.machines.machines.get(made.body.id)).toMatchObject({ is: 'up', starts: 1 })
    const shown = await machines.call('GET', made.body.id)
    expect(shown.body).toMatchObject({ state: 'started', image_ref: { digest: expect.stringMatching(/^sha256:/) } })
    expect(await events(made.body.id)).toEqual(['launch created user', 'start starting flyd', 'start started flyd'])
    expect((await call('GET', '/v1/apps/shop')).body).toMatchObject({ machine_count: 1, status: 'deployed' })
  })

  test('generates a name, and refuses one that is taken', async () => {
    const made = await create()
    expect(made.body.name).toMatch(/^[a-z]+-[a-z]+-\d+$/)
    expect(await create({ name: made.body.name })).toMatchObject({
      status: 409,
      body: {
        error: `already_exists: unique machine name violation, machine ID ${made.body.id} already exists with name "${made.body.name}"`,
      },
    })
    await machines.call('DELETE', made.body.id, '?force=true')
    await settle()
    expect((await create({ name: made.body.name })).status).toBe(200)
  })

  test('does not start it with skip_launch', async () => {
    const { body } = await create({ skip_launch: true, skip_service_registration: true })
    await settle()
    expect(await machines.call('GET', body.id)).toMatchObject({ body: { state: 'created', cordoned: true } })
    expect(fake.machines.machines.size).toBe(0)
    const begun = await machines.call('POST', body.id, '/start')
    expect(begun.body).toEqual({ previous_state: 'created', migrated: false, new_host: '' })
    await settle()
    expect(await state(body.id)).toBe('started')
  })

  test('assigns the highest free slots, each once, even to concurrent requests', async () => {
    const replies = await Promise.all(Array.from({ length: 30 }, () => create({ skip_launch: true })))
    expect(replies.map((reply) => reply.status)).toEqual(Array(30).fill(200))
    const slots = (await platform.sql('select slot from machine order by slot desc')).map((row) => row.slot)
    expect(slots).toEqual(Array.from({ length: 30 }, (_, nth) => 1023 - nth))
  })

  test('refuses more machines than the host has slots for', async () => {
    const refusal = { status: 422, body: { error: 'could not find a candidate host', status: 'insufficient_capacity' } }
    expect(await create({}, { guest: { cpu_kind: 'performance', cpus: 16, memory_mb: 131_072 } })).toMatchObject(
      refusal,
    )
    await platform.sql(`insert into box_slot select n, 'x' from generate_series(1, 1023) n`)
    expect(await create()).toMatchObject(refusal)
    await platform.sql('delete from box_slot where slot = 77')
    expect((await create({ skip_launch: true })).status).toBe(200)
    expect(await platform.sql('select slot from machine')).toEqual([{ slot: 77 }])
  })

  test('gives the program its environment: image, configuration, secrets, the platform', async () => {
    await call('POST', '/v1/apps/shop/secrets', { body: { values: { KEY: 'secret', B: 'secret' } } })
    const id = await started({}, { env: { B: 'config', FROM: 'config', FLY_REGION: 'elsewhere' } })
    const { env } = fake.machines.machines.get(id)!.spec
    expect(env).toMatchObject({
      PATH: '/bin',
      FROM: 'config',
      B: 'secret',
      KEY: 'secret',
      FLY_APP_NAME: 'shop',
      FLY_MACHINE_ID: id,
      FLY_ALLOC_ID: id,
      FLY_REGION: 'local',
      FLY_PRIVATE_IP: expect.stringMatching(/^fdaa:/),
      FLY_MACHINE_VERSION: expect.stringMatching(/^[0-9A-Z]{26}$/),
      FLY_IMAGE_REF: expect.stringMatching(/^docker\.io\/library\/nginx:latest@sha256:/),
      FLY_PROCESS_GROUP: 'app',
      FLY_VM_MEMORY_MB: '256',
      FLY_PUBLIC_IP: '',
      PRIMARY_REGION: 'local',
    })
    const program = {
      ignore_app_secrets: true,
      secrets: [
        { env_var: 'ONLY', name: 'KEY' },
        { env_var: 'B', name: '' },
      ],
      env_from: [{ env_var: 'ME', field_ref: 'id' }],
    }
    const chosen = await started({}, { processes: [program] })
    expect(fake.machines.machines.get(chosen)!.spec.env).toMatchObject({ ONLY: 'secret', B: 'secret', ME: chosen })
    expect(fake.machines.machines.get(chosen)!.spec.env.KEY).toBeUndefined()
    const without = await started({ skip_secrets: true })
    expect(fake.machines.machines.get(without)!.spec.env.KEY).toBeUndefined()
  })

  test('keeps the secrets it had until it is updated', async () => {
    const id = await started()
    const set = await call('POST', '/v1/apps/shop/secrets', { body: { values: { KEY: 'new' } } })
    await machines.call('POST', id, '/restart')
    await settle()
    expect(fake.machines.machines.get(id)!.spec.env.KEY).toBeUndefined()
    const version = set.body.version
    const body = { config: { image: 'nginx' }, min_secrets_version: version }
    expect((await machines.call('POST', id, '', { body: { ...body, min_secrets_version: version + 1 } })).status).toBe(
      412,
    )
    expect((await machines.call('POST', id, '', { body })).status).toBe(200)
    await settle()
    expect(fake.machines.machines.get(id)!.spec.env.KEY).toBe('new')
  })

  test('combines entrypoint and arguments of image and configuration as Docker does', async () => {
    const argvOf = async (config: object) => fake.machines.machines.get(await started({}, config))?.spec.argv
    fake.images.config = { entrypoint: ['/entry'], cmd: ['cmd'] }
    expect(await argvOf({})).toEqual(['/entry', 'cmd'])
    expect(await argvOf({ init: { cmd: ['other'] } })).toEqual(['/entry', 'other'])
    expect(await argvOf({ init: { entrypoint: ['/mine'] } })).toEqual(['/mine'])
    expect(await argvOf({ init: { entrypoint: ['/mine'], cmd: ['x'] } })).toEqual(['/mine', 'x'])
    expect(await argvOf({ init: { exec: ['/only'], cmd: ['x'] } })).toEqual(['/only'])
    expect(await argvOf({ processes: [{ cmd: ['p'] }] })).toEqual(['/entry', 'p'])
  })

  test('is destroyed with the reason when its image or its program cannot be found', async () => {
    fake.images.available = new Set()
    const { body } = await create()
    await settle()
    const shown = await machines.call('GET', body.id)
    expect(shown.body).toMatchObject({
      state: 'destroyed',
      failure: 'there is no image docker.io/library/nginx:latest',
    })
    expect(await events(body.id)).toEqual([
      'launch created user',
      'start starting flyd',
      'launch launch_failed flyd',
      'destroy destroyed flyd',
    ])
    expect(shown.body.events[1].request).toEqual({ error: expect.stringContaining('no image') })
    expect((await call('GET', path)).body).toEqual([])
    expect((await call('GET', `${path}?include_deleted=true`)).body).toHaveLength(1)

    fake.images.available = null
    fake.machines.endsWith = 127
    const second = await create()
    await settle()
    expect((await machines.call('GET', second.body.id)).body).toMatchObject({
      state: 'destroyed',
      failure: expect.stringContaining('not found in the image'),
    })
    fake.machines.endsWith = undefined
    fake.images.config = { cmd: [] }
    const third = await create()
    await settle()
    expect((await machines.call('GET', third.body.id)).body.failure).toContain('names no program')
    expect(fake.machines.machines.size).toBe(0)
    expect(await platform.sql('select slot from box_slot')).toEqual([])
  })

  test('waits for a slow pull without blocking the loop, and reports it', async () => {
    fake.images.pullsSlowly = true
    const { body } = await create()
    expect((await platform.turn())?.result).toBe('wait')
    expect(await platform.sql('select note from work')).toEqual([{ note: 'pulling the image' }])
    fake.images.pullsSlowly = false
    // The end of the pull wakes the machine.
    await until(async () => (await platform.sql('select 1 from work where run_at <= now()')).length === 1)
    await settle()
    expect(await state(body.id)).toBe('started')
    expect(fake.images.pulls).toBe(1)
  })

  test('repeated with an Idempotency-Key returns the same answer', async () => {
    const headers = { 'idempotency-key': 'k' }
    const [first, second] = [await create({}, {}, { headers }), await create({}, {}, { headers })]
    expect(second.body).toEqual(first.body)
    expect(await platform.sql('select id from machine')).toHaveLength(1)
  })

  test('accepts lists and groups of regions', async () => {
    const regionOf = async (region: string) => (await create({ region, skip_launch: true })).body.region
    expect(await regionOf('fra')).toBe('fra')
    expect(await regionOf('iad,us')).toBe('iad')
    expect(await regionOf('any')).toBe('local')
    expect(await create({ region: 'NO' })).toMatchObject({
      status: 400,
      body: { error: expect.stringContaining('region') },
    })
  })

  test('accepts images from files of the host only with the root token', async () => {
    const token = await platform.createToken('org', 'personal')
    const config = { image: 'oci:/var/images' }
    expect(await create({ skip_launch: true }, config)).toMatchObject({
      status: 200,
      body: { image_ref: { repository: 'oci:/var/images' } },
    })
    expect(await create({}, config, { token })).toMatchObject({
      status: 400,
      body: { error: expect.stringContaining('config.image') },
    })
  })

  test('attaches a volume of its app exclusively until it is destroyed', async () => {
    const volume = await call('POST', '/v1/apps/shop/volumes', { body: { name: 'data' } })
    const mounts = [{ volume: volume.body.id, path: '/data' }]
    const id = await started({}, { mounts })
    expect(fake.machines.machines.get(id)!.spec.mounts).toEqual([{ volumeId: volume.body.id, path: '/data' }])
    expect((await create({}, { mounts })).status).toBe(412)
    expect((await create({}, { mounts: [{ name: 'data', path: '/x' }] })).status).toBe(412)
    expect((await create({}, { mounts: [{ volume: 'vol_none', path: '/x' }] })).status).toBe(404)
    await machines.call('DELETE', id, '?force=true')
    await settle()
    const named = await started({}, { mounts: [{ name: 'data', path: '/x' }] })
    expect((await machines.call('GET', named)).body.config.mounts).toEqual([
      { name: 'data', path: '/x', volume: volume.body.id },
    ])
    await machines.call('POST', named, '', { body: { config: { image: 'nginx' } } })
    await settle()
    expect((await call('GET', `/v1/apps/shop/volumes/${volume.body.id}`)).body.attached_machine_id).toBeNull()
  })
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
    [{ containers: [{ name: 'a' }] }, 'config.containers'],
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
    [{ dns: { dns_forward_rules: [{ basename: 'x', addr: '192.0.2.1' }] } }, 'config.dns.dns_forward_rules'],
    [{ standbys: ['web-1'] }, 'config.standbys.0'],
    [{ cache_drive: { size_mb: 100 } }, 'config.cache_drive'],
    [{ containers: [{ name: 'a', image: 'b' }] }, 'config.containers'],
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

describe('the life of a machine', () => {
  test('stop, start, restart', async () => {
    const id = await started()
    expect((await machines.call('POST', id, '/start')).body.previous_state).toBe('started')
    expect((await machines.call('POST', id, '/stop', { body: { signal: 'SIGTERM', timeout: '2s' } })).body).toEqual({
      ok: true,
    })
    await settle()
    expect(await state(id)).toBe('stopped')
    const [exit] = (await machines.call('GET', id)).body.events.filter(({ type }: { type: string }) => type === 'exit')
    expect(exit).toMatchObject({
      status: 'stopped',
      source: 'flyd',
      request: {
        exit_event: { exit_code: 130, requested_stop: true, restarting: false, oom_killed: false, guest_signal: 2 },
      },
    })
    expect(exit.request.MonitorEvent.exit_event).toEqual(exit.request.exit_event)
    expect((await machines.call('POST', id, '/stop')).status).toBe(200)
    expect(await machines.call('POST', id, '/restart')).toMatchObject({
      status: 412,
      body: { error: `failed_precondition: unable to restart machine from current state: 'stopped'` },
    })
    await machines.call('POST', id, '/start')
    await settle()
    expect(await state(id)).toBe('started')
    await machines.call('POST', id, '/restart?timeout=5')
    await settle()
    expect(await state(id)).toBe('started')
    expect(fake.machines.machines.get(id)!.starts).toBe(3)
    expect(await events(id)).toEqual([
      'launch created user',
      'start starting flyd',
      'start started flyd',
      'stop stopping user',
      'exit stopped flyd',
      'stop stopped flyd',
      'start starting user',
      'start started flyd',
      'restart restarting user',
      'exit stopped flyd',
      'start started flyd',
    ])
  })

  test('suspend and resume', async () => {
    const id = await started()
    await machines.call('POST', id, '/suspend')
    await settle()
    expect(await state(id)).toBe('suspended')
    expect(fake.machines.machines.get(id)!.frozen).toBe(true)
    await machines.call('POST', id, '/start')
    await settle()
    expect(fake.machines.machines.get(id)).toMatchObject({ frozen: false, starts: 1 })
    await machines.call('POST', id, '/suspend')
    await settle()
    await machines.call('POST', id, '/stop')
    await settle()
    expect(await state(id)).toBe('stopped')
  })

  test('is stopped instead of suspended on hosts without a freezer', async () => {
    const id = await started({}, { stop_config: { signal: 'SIGQUIT', timeout: '9s' } })
    fake.machines.freezes = false
    fake.machines.stopsSlowly = true
    await machines.call('POST', id, '/suspend')
    expect((await platform.turn())?.result).toBe('wait')
    fake.machines.stopsSlowly = false
    await settle()
    expect(fake.machines.lastStop).toEqual({ signal: 'SIGQUIT', timeoutMs: 9000 })
    expect(await state(id)).toBe('stopped')
    expect((await events(id)).slice(-3)).toEqual(['suspend suspending user', 'exit stopped flyd', 'stop stopped flyd'])
  })

  test('suspending a machine whose program exits or waits for a restart stops it', async () => {
    for (const is of ['down', 'waiting'] as const) {
      const id = await started()
      await machines.call('POST', id, '/suspend')
      fake.machines.end(id, { exitCode: 1 })
      fake.machines.machines.get(id)!.is = is
      await settle()
      expect(await state(id)).toBe('stopped')
      expect(fake.machines.machines.get(id)!.is).toBe('down')
    }
  })

  test('an update replaces a running program and does not start a stopped one', async () => {
    const id = await started()
    const before = (await machines.call('GET', id)).body
    const update = (extra: object = {}) =>
      machines.call('POST', id, '', { body: { config: { image: 'caddy', env: { N: '2' } }, ...extra } })
    expect(await update({ current_version: 'other' })).toMatchObject({
      status: 409,
      body: { error: 'aborted: machine update failed due to concurrent update' },
    })
    expect((await update({ name: 'other' })).status).toBe(400)
    expect((await update({ region: 'fra' })).status).toBe(400)
    const made = await update({ current_version: before.instance_id, name: before.name, region: before.region })
    expect(made.body).toMatchObject({ state: 'replacing', config: { image: 'caddy' } })
    expect(made.body.instance_id > before.instance_id).toBe(true)
    expect((await machines.call('POST', id, '/start')).status).toBe(412)
    await settle()
    expect(fake.machines.machines.get(id)!.spec).toMatchObject({ instanceId: made.body.instance_id, env: { N: '2' } })
    expect((await machines.call('GET', id, '/versions')).body).toEqual([
      { version: made.body.instance_id, user_config: made.body.config },
      { version: before.instance_id, user_config: before.config },
    ])
    await machines.call('POST', id, '/stop')
    await settle()
    await update()
    await settle()
    expect(await state(id)).toBe('stopped')
    expect(fake.machines.machines.get(id)!.is).toBe('down')
    const room = { config: { image: 'caddy', guest: { cpu_kind: 'performance', cpus: 16, memory_mb: 131_072 } } }
    expect(await machines.call('POST', id, '', { body: room })).toMatchObject({
      status: 409,
      body: { error: expect.stringContaining('could not reserve resource') },
    })
  })

  test('an update stops the program with the options of its own version', async () => {
    const id = await started({}, { stop_config: { signal: 'SIGQUIT', timeout: '9s' } })
    await machines.call('POST', id, '/restart?force_stop=true')
    await settle()
    expect(fake.machines.lastStop).toEqual({ signal: 'SIGKILL', timeoutMs: 0 })
    await machines.call('POST', id, '', { body: { config: { image: 'web' } } })
    await settle()
    expect(fake.machines.lastStop).toEqual({ signal: 'SIGQUIT', timeoutMs: 9000 })
  })

  test('of concurrent updates of one version only one succeeds', async () => {
    const id = await started()
    const { version } = (await machines.call('GET', id)).body
    const body = { config: { image: 'caddy' }, current_version: version }
    const replies = await Promise.all(Array.from({ length: 10 }, () => machines.call('POST', id, '', { body })))
    expect(replies.map(({ status }) => status).sort()).toEqual([200, ...Array(9).fill(409)])
    await settle()
    expect((await machines.call('GET', id, '/versions')).body).toHaveLength(2)
  })

  test('an update to a missing image stops the machine and reports why', async () => {
    const id = await started()
    fake.images.available = new Set()
    await machines.call('POST', id, '', { body: { config: { image: 'gone' } } })
    await settle()
    expect((await machines.call('GET', id)).body).toMatchObject({
      state: 'failed',
      failure: expect.stringContaining('no image'),
    })
    expect(fake.machines.machines.get(id)!.is).toBe('down')
    fake.images.available = null
    await machines.call('POST', id, '', { body: { config: { image: 'nginx' } } })
    await settle()
    expect((await machines.call('GET', id)).body).toMatchObject({ state: 'started' })
  })

  test('a running machine is destroyed only by force, and stays visible for a while', async () => {
    const id = await started()
    expect(await machines.call('DELETE', id)).toMatchObject({
      status: 412,
      body: { error: expect.stringContaining('force=true') },
    })
    expect((await machines.call('DELETE', id, '?kill=true')).body).toEqual({ ok: true })
    expect((await machines.call('POST', id, '/start')).status).toBe(412)
    await settle()
    expect(await machines.call('GET', id)).toMatchObject({ status: 200, body: { state: 'destroyed', private_ip: '' } })
    expect((await machines.call('DELETE', id)).status).toBe(200)
    expect((await machines.call('POST', id, '', { body: { config: { image: 'nginx' } } })).status).toBe(404)
    expect((await call('GET', '/v1/apps/shop')).body).toMatchObject({ machine_count: 0, status: 'pending' })
    await platform.sql(`update machine set destroyed_at = now() - interval '2 hours'`)
    const { tidyMachines } = await import('../../../src/reconcile/app/machine-watch.ts')
    await tidyMachines(fake.world(platform.database.db))
    expect(await machines.call('GET', id)).toMatchObject({ status: 404, body: { error: 'machine not found' } })
  })

  test('exits of its program become events, and the policy decides the state', async () => {
    const done = await started({}, { restart: { policy: 'no' } })
    fake.machines.end(done, { exitCode: 3 })
    await look()
    expect(await state(done)).toBe('stopped')
    const again = await started({}, { restart: { policy: 'always' } })
    fake.machines.end(again, { exitCode: 1, restarting: true })
    fake.machines.end(again, { exitCode: 1, restarting: true })
    await look()
    expect(await state(again)).toBe('started')
    expect((await events(again)).slice(-4)).toEqual([
      'exit stopped flyd',
      'restart starting flyd',
      'exit stopped flyd',
      'restart starting flyd',
    ])
    await look()
    expect(await platform.sql('select restart_count from machine where id = $1', [again])).toEqual([
      { restart_count: 2 },
    ])
    const failing = await started({}, { restart: { policy: 'on-failure', max_retries: 1 } })
    fake.machines.end(failing, { exitCode: 1, restarting: true })
    fake.machines.end(failing, { exitCode: 137, signal: 9, oomKilled: true })
    await look()
    expect((await machines.call('GET', failing)).body).toMatchObject({
      state: 'stopped',
      failure: expect.stringContaining('memory'),
    })
    expect((await events(failing)).at(-1)).toBe('stop stopped flyd')
    const well = await started({}, { restart: { policy: 'on-failure' } })
    fake.machines.end(well)
    await look()
    expect(await state(well)).toBe('stopped')
    const once = await started({}, { auto_destroy: true, restart: { policy: 'no' } })
    fake.machines.end(once, { exitCode: 1 })
    await look()
    expect(await state(once)).toBe('destroyed')
    expect((await events(once)).slice(-3)).toEqual([
      'exit stopped flyd',
      'destroy destroying flyd',
      'destroy destroyed flyd',
    ])
  })

  test('one that disappeared without an exit, as in a reboot, is restarted', async () => {
    const id = await started()
    fake.machines.machines.delete(id)
    await look()
    expect(fake.machines.machines.get(id)).toMatchObject({ is: 'up' })
    expect(await state(id)).toBe('started')
  })

  test('one that cannot be restarted fails, and can be stopped, restarted or started', async () => {
    for (const [word, then] of [
      ['stop', 'stopped'],
      ['restart', 'started'],
      ['start', 'started'],
    ] as const) {
      const id = await started()
      fake.machines.machines.delete(id)
      fake.images.config = { cmd: [] }
      fake.images.pulled.clear()
      await look()
      expect((await machines.call('GET', id)).body).toMatchObject({
        state: 'failed',
        failure: expect.stringContaining('names no program'),
      })
      fake.images.config = {}
      fake.images.pulled.clear()
      expect((await machines.call('POST', id, `/${word}`)).status).toBe(200)
      await settle()
      expect(await state(id)).toBe(then)
      await machines.call('DELETE', id, '?force=true')
      await settle()
    }
  })

  test('a slow stop does not block the loop or a deletion', async () => {
    const id = await started()
    fake.machines.stopsSlowly = true
    await machines.call('POST', id, '/stop')
    expect((await platform.turn())?.result).toBe('wait')
    await machines.call('DELETE', id, '?force=true')
    await settle()
    expect(await state(id)).toBe('destroyed')
    fake.machines.stopsSlowly = false
  })

  test('its step does not deadlock with a step of its app', async () => {
    const { lockState } = await import('../../../src/store/transition.ts')
    const id = await started()
    const [{ app_id: app }] = await platform.sql('select app_id from machine where id = $1', [id])
    await platform.database.db.transaction(async (tx) => {
      await lockState(tx, 'app', app)
      await platform.database.db.transaction(async (other) => {
        await other.query(`set local lock_timeout = '5s'`)
        await lockState(other, 'machine', id)
        // The second update of a row in one transaction checks the foreign key to its app again.
        for (let times = 0; times < 2; times++)
          await other.query('update machine set wanted = true where id = $1', [id])
      })
    })
  })

  test('is started by its schedule', async () => {
    const { startScheduled } = await import('../../../src/store/app/machine-change.ts')
    const id = await started({}, { schedule: 'hourly', restart: { policy: 'no' } })
    const running = await started({}, { schedule: 'daily' })
    fake.machines.end(id)
    await look()
    expect(await state(id)).toBe('stopped')
    await platform.sql('update machine set next_start_at = now()')
    await platform.database.db.transaction(startScheduled)
    expect(await platform.sql('select id from machine where next_start_at > now()')).toHaveLength(2)
    await settle()
    expect([await state(id), await state(running)]).toEqual(['started', 'started'])
    expect(fake.machines.machines.get(running)!.starts).toBe(1)
  })

  test('an update adds or removes a schedule, and does not reset an unchanged one', async () => {
    const id = await started()
    const update = async (schedule?: string) => {
      const config = { image: 'nginx', ...(schedule && { schedule }) }
      expect((await machines.call('POST', id, '', { body: { config } })).status).toBe(200)
      await settle()
      const [row] = await platform.sql(
        'select extract(epoch from next_start_at - now())::float8 as seconds from machine where id = $1',
        [id],
      )
      return row.seconds
    }
    expect(await update('hourly')).toBeGreaterThan(3500)
    await platform.sql(`update machine set next_start_at = now() + interval '10 minutes'`)
    expect(await update('hourly')).toBeLessThan(601)
    expect(await update('weekly')).toBeGreaterThan(6 * 86_400)
    expect(await update()).toBeNull()
  })

  test('a standby is not launched, and is started when the other machine fails', async () => {
    const { startScheduled } = await import('../../../src/store/app/machine-change.ts')
    const first = await started()
    const bystander = (await create({}, { standbys: ['00000000000000'] })).body.id
    const standby = (await create({}, { standbys: [first] })).body.id
    const wake = async () => {
      await platform.database.db.transaction(startScheduled)
      await settle()
      return Promise.all([first, standby, bystander].map(state))
    }
    expect(await wake()).toEqual(['started', 'created', 'created'])
    fake.machines.end(first, { exitCode: 1 })
    await look()
    expect(await wake()).toEqual(['stopped', 'started', 'created'])
    // A machine that was stopped or exited with 0 is not replaced by a standby.
    await machines.call('POST', standby, '/stop')
    await machines.call('POST', first, '/start')
    await settle()
    await machines.call('POST', first, '/stop')
    await settle()
    expect(await wake()).toEqual(['stopped', 'stopped', 'created'])
    fake.images.available = new Set()
    await machines.call('POST', first, '', { body: { config: { image: 'gone' } } })
    await settle()
    await machines.call('POST', first, '/start')
    await settle()
    fake.images.available = null
    expect(await wake()).toEqual(['failed', 'started', 'created'])
  })

  test('a failed machine is started again by its schedule', async () => {
    const { startScheduled } = await import('../../../src/store/app/machine-change.ts')
    const id = await started({}, { schedule: 'hourly' })
    fake.images.available = new Set()
    await machines.call('POST', id, '', { body: { config: { image: 'gone', schedule: 'hourly' } } })
    await settle()
    expect(await state(id)).toBe('failed')
    fake.images.available = null
    await platform.sql('update machine set next_start_at = now()')
    await platform.database.db.transaction(startScheduled)
    await settle()
    expect(await state(id)).toBe('started')
  })

  test('deleting the app removes its machines before their rows', async () => {
    const id = await started()
    await create({ skip_launch: true })
    expect((await call('DELETE', '/v1/apps/shop')).status).toBe(422)
    expect((await call('DELETE', '/v1/apps/shop?force=true')).status).toBe(202)
    expect(await machines.call('GET', id)).toMatchObject({ status: 404, body: { error: 'app not found' } })
    await settle()
    expect(fake.machines.machines.size).toBe(0)
    expect(
      await platform.sql('select 1 from machine union all select 1 from box_slot union all select 1 from work'),
    ).toEqual([])
  })

  test('unused images are removed, those of machines stay', async () => {
    const { collectImages } = await import('../../../src/reconcile/app/image-collection.ts')
    await started()
    const gone = await started({}, { image: 'caddy' })
    await machines.call('DELETE', gone, '?force=1')
    await settle()
    await collectImages(fake.world(platform.database.db))
    expect([...fake.images.pulled.keys()]).toHaveLength(1)
  })
})

describe('leases', () => {
  const lease = (id: string, body: object = {}, nonce?: string, query = '') =>
    machines.call('POST', id, `/lease${query}`, {
      body,
      ...(nonce && { headers: { 'fly-machine-lease-nonce': nonce } }),
    })

  test('keep others from changing the machine', async () => {
    const id = await started()
    expect(await machines.call('GET', id, '/lease')).toMatchObject({ status: 404 })
    const held = await lease(id, { ttl: 60, description: 'deploy' })
    expect(held).toMatchObject({
      status: 201,
      body: {
        status: 'success',
        data: {
          nonce: expect.any(String),
          expires_at: expect.any(Number),
          owner: 'root',
          description: 'deploy',
          version: expect.any(String),
        },
      },
    })
    const { nonce, expires_at } = held.body.data
    expect(expires_at - Date.now() / 1000).toBeGreaterThan(50)
    expect((await machines.call('GET', id, '/lease')).body).toEqual(held.body)
    const headers = { 'fly-machine-lease-nonce': nonce }
    const message = expect.stringMatching(new RegExp(`^machine ID ${id} lease currently held by root, expires at `))
    const config = { image: 'nginx' }
    for (const [rest, body] of [
      ['', { config }],
      ['/start'],
      ['/stop'],
      ['/restart'],
      ['/suspend'],
      ['/cordon'],
      ['/uncordon'],
      ['/lease'],
    ] as const) {
      expect(await machines.call('POST', id, rest, { ...(body && { body }) })).toMatchObject({
        status: 409,
        body: { status: 'error', message, code: 'invalid' },
      })
    }
    expect((await machines.call('DELETE', id, '?force=true')).status).toBe(409)
    expect((await lease(id, {}, 'wrong')).status).toBe(409)
    expect((await lease(id, {}, nonce, '?ttl=100')).body.data).toMatchObject({ nonce, description: 'deploy' })
    expect((await machines.call('GET', id, '?include_leases=true')).body.lease).toMatchObject({
      owner: 'root',
      description: 'deploy',
    })
    expect((await machines.call('GET', id)).body.nonce).toBeUndefined()
    expect((await machines.call('POST', id, '/cordon', { headers })).status).toBe(200)
    expect((await machines.call('DELETE', id, '/lease')).status).toBe(400)
    expect((await machines.call('DELETE', id, '/lease', { headers: { 'fly-machine-lease-nonce': 'x' } })).status).toBe(
      400,
    )
    expect((await machines.call('DELETE', id, '/lease', { headers })).body).toEqual({ ok: true })
    expect((await machines.call('POST', id, '/uncordon')).status).toBe(200)
  })

  test('expire, can be acquired at creation, and have limits', async () => {
    const made = await create({ lease_ttl: 60, skip_launch: true })
    expect(made.body.nonce).toEqual(expect.any(String))
    expect((await machines.call('POST', made.body.id, '/start')).status).toBe(409)
    await platform.sql(`update machine set lease_until = now() - interval '1 second'`)
    expect((await machines.call('POST', made.body.id, '/start')).status).toBe(200)
    for (const ttl of [-1, 100_000]) expect((await lease(made.body.id, { ttl })).status).toBe(400)
  })

  test('of a hundred concurrent requests one is granted', async () => {
    const { body } = await create({ skip_launch: true })
    const replies = await Promise.all(Array.from({ length: 100 }, () => lease(body.id)))
    expect(replies.filter(({ status }) => status === 201)).toHaveLength(1)
  })
})

describe('metadata', () => {
  test('is read and changed as a whole and by key, without a new version', async () => {
    const { body } = await create({ skip_launch: true }, { metadata: { a: '1', b: '2' } })
    const metadata = async () => (await machines.call('GET', body.id, '/metadata')).body
    expect(await metadata()).toEqual({ a: '1', b: '2' })
    expect(
      (await machines.call('PATCH', body.id, '/metadata', { body: { metadata: { a: null, c: '3', d: '' } } })).status,
    ).toBe(204)
    expect(await metadata()).toEqual({ b: '2', c: '3' })
    expect(
      (
        await machines.call('PUT', body.id, '/metadata', {
          body: { metadata: { b: '', x: 'y' }, machine_version: body.version },
        })
      ).status,
    ).toBe(204)
    expect(await metadata()).toEqual({ c: '3', x: 'y' })
    expect(
      (await machines.call('PUT', body.id, '/metadata', { body: { metadata: {}, machine_version: 'other' } })).status,
    ).toBe(412)
    expect((await machines.call('PUT', body.id, '/metadata', { body: {} })).status).toBe(400)
    expect((await machines.call('POST', body.id, '/metadata/k%2F1', { body: { value: 'v' } })).status).toBe(204)
    expect((await machines.call('GET', body.id, '/metadata/k%2F1')).body).toEqual({ value: 'v' })
    expect((await machines.call('DELETE', body.id, '/metadata/x')).status).toBe(204)
    expect((await machines.call('GET', body.id, '/metadata/x')).status).toBe(404)
    expect((await machines.call('GET', body.id, '/metadata/constructor')).status).toBe(404)
    expect((await machines.call('GET', body.id)).body.version).toBe(body.version)
  })
})

describe('lists', () => {
  test('of an app support every filter', async () => {
    const a = await started({ region: 'fra' }, { metadata: { role: 'web', tier: '1' } })
    const b = (await create({ skip_launch: true }, { metadata: { role: 'web' } })).body.id
    const ids = async (query: string) => (await call('GET', `${path}${query}`)).body.map(({ id }: { id: string }) => id)
    expect(await ids('')).toEqual([a, b])
    expect(await ids('?region=fra')).toEqual([a])
    expect(await ids('?state=created,stopped')).toEqual([b])
    expect(await ids('?metadata.role=web')).toEqual([a, b])
    expect(await ids('?metadata.role=web&metadata.tier=1')).toEqual([a])
    expect((await call('GET', `${path}?state=odd`)).status).toBe(400)
    const [summary] = (await call('GET', `${path}?summary=true`)).body
    for (const field of ['config', 'events', 'checks', 'host_status']) expect(summary).not.toHaveProperty(field)
  })

  test('of an organization are paged, ordered by the last change', async () => {
    await platform.createApp('second')
    const other = machinesOf(platform, 'second')
    const ids = [
      (await create({ skip_launch: true })).body.id,
      (await other.create({ skip_launch: true })).body.id,
      (await create({ skip_launch: true })).body.id,
    ]
    const first = await call('GET', '/v1/orgs/personal/machines?limit=2')
    expect(first.body.machines.map(({ id, app_name }: Record<string, string>) => [id, app_name])).toEqual([
      [ids[0], 'shop'],
      [ids[1], 'second'],
    ])
    const second = await call('GET', `/v1/orgs/personal/machines?limit=2&cursor=${first.body.next_cursor}`)
    expect(second.body).toMatchObject({
      machines: [{ id: ids[2] }],
      next_cursor: '',
      last_machine_id: ids[2],
      error_regions: [],
    })
    const after = await call('GET', `/v1/orgs/personal/machines?updated_after=${second.body.last_updated_at}`)
    expect(after.body.machines).toEqual([])
    await platform.sql(
      `insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted)
       select lpad(to_hex(nth), 14, '0'), app_id, 'm' || nth, 'created', region, instance_id, config, network_number, false
       from machine, generate_series(1, 100) nth where id = $1`,
      [ids[0]],
    )
    const all = await call('GET', '/v1/orgs/personal/machines?summary=true')
    expect([all.body.machines.length, all.body.next_cursor]).toEqual([103, ''])
    expect((await call('GET', '/v1/orgs/personal/machines?cursor=odd')).status).toBe(400)
    expect((await call('GET', '/v1/orgs/nobody/machines')).status).toBe(404)
  })

  test('show where machines would be placed', async () => {
    expect((await call('POST', '/v1/platform/placements', { body: { org_slug: 'personal', count: 2 } })).body).toEqual({
      regions: [{ region: 'local', count: 2, concurrency: 2 }],
    })
    const countOf = async (body: object) => {
      const reply = await call('POST', '/v1/platform/placements', { body: { org_slug: 'personal', ...body } })
      return reply.body.regions[0].count
    }
    const fitting = await countOf({ count: 0 })
    expect(fitting).toBeGreaterThan(1)
    expect(await countOf({ compute: { memory_mb: 512 } })).toBe(Math.floor(fitting / 2))
    const compute = { cpu_kind: 'performance', cpus: 16, memory_mb: 131_072 }
    expect((await call('POST', '/v1/platform/placements', { body: { org_slug: 'personal', compute } })).status).toBe(
      422,
    )
  })
})

describe('waiting', () => {
  test('ends with the change, the failure or the timeout', async () => {
    const { body } = await create()
    const waiting = machines.call('GET', body.id, '/wait?timeout=30')
    await settle()
    const shown = (await machines.call('GET', body.id)).body
    expect(await waiting).toMatchObject({
      status: 200,
      body: { ok: true, state: 'started', version: body.version, event_id: shown.events[0].id },
    })
    expect(await machines.call('GET', body.id, '/wait?state=stopped&timeout=0')).toMatchObject({
      status: 408,
      body: { error: 'deadline_exceeded: machine failed to reach desired state, stopped, currently started' },
    })
    for (const query of [
      'state=stopped,started',
      'state=stopped&state=started',
      'state=settled',
      `state=started&instance_id=${body.version}`,
    ]) {
      expect((await machines.call('GET', body.id, `/wait?${query}`)).status).toBe(200)
    }
    expect((await machines.call('GET', body.id, '/wait?state=odd')).status).toBe(400)
    expect((await machines.call('GET', body.id, '/wait?timeout=soon')).status).toBe(400)
    expect((await machines.call('GET', body.id, '/wait?version=odd')).status).toBe(400)
    expect((await machines.call('GET', body.id, '/wait?from_event_id=odd')).status).toBe(400)
  })

  test('starts from an event, and supports versions', async () => {
    const id = await started()
    const before = (await machines.call('GET', id)).body
    const from = before.events[0].id
    expect((await machines.call('GET', id, `/wait?from_event_id=${from}&timeout=0`)).status).toBe(408)
    await machines.call('POST', id, '/stop')
    await settle()
    await machines.call('POST', id, '/start')
    await settle()
    expect((await machines.call('GET', id, `/wait?state=stopped&from_event_id=${from}`)).body.state).toBe('stopped')
    await machines.call('POST', id, '', { body: { config: { image: 'caddy' } } })
    await settle()
    expect((await machines.call('GET', id, `/wait?state=stopped&instance_id=${before.version}`)).status).toBe(200)
    const refused = (state: string) => ({
      status: 412,
      body: { error: `failed_precondition: machine failed to reach desired state, started, currently ${state}` },
    })
    expect(await machines.call('GET', id, `/wait?state=started&instance_id=${before.version}`)).toMatchObject(
      refused('replaced'),
    )
    await machines.call('DELETE', id, '?force=1')
    await settle()
    expect((await machines.call('GET', id, '/wait?state=destroyed')).status).toBe(200)
    expect(await machines.call('GET', id, '/wait?state=started')).toMatchObject(refused('destroyed'))
    fake.images.available = new Set()
    const { body } = await create()
    await settle()
    expect(await machines.call('GET', body.id, '/wait?state=started')).toMatchObject(
      refused('destroyed: there is no image docker.io/library/nginx:latest'),
    )
  })
})

describe('inside a machine', () => {
  test('exec returns the output and the exit code', async () => {
    const id = await started({}, { env: { GREETING: 'hello' } })
    const exec = (body: object) => machines.call('POST', id, '/exec', { body })
    expect(
      (await exec({ command: ['sh', '-c', 'echo $GREETING; cat; echo oops >&2; exit 3'], stdin: 'in' })).body,
    ).toEqual({
      exit_code: 3,
      exit_signal: 0,
      stdout: 'hello\nin',
      stderr: 'oops\n',
    })
    expect((await exec({ cmd: `sh -c 'echo "a b"'`, command: [] })).body.stdout).toBe('a b\n')
    const much = await exec({ command: ['sh', '-c', 'head -c 3000000 /dev/zero | tr "\\\\0" x'] })
    expect(much.body.stdout).toHaveLength(1024 * 1024)
    expect((await exec({ command: ['sleep', '100'], timeout: 1 })).status).toBe(408)
    for (const body of [
      {},
      { command: [] },
      { cmd: '' },
      { cmd: `'a` },
      { command: ['a\0'] },
      { command: ['a'], container: 'x' },
      { command: 'a' },
    ]) {
      expect((await exec(body)).status).toBe(400)
    }
    await machines.call('POST', id, '/stop')
    await settle()
    expect((await exec({ command: ['true'] })).status).toBe(412)
  })

  test('exec is refused while the program waits for a restart', async () => {
    const id = await started()
    fake.machines.machines.get(id)!.is = 'waiting'
    const reply = await machines.call('POST', id, '/exec', { body: { command: ['true'] } })
    expect(reply).toMatchObject({ status: 412, body: { error: expect.stringContaining('has exited') } })
  })

  test('processes, signals and memory', async () => {
    const id = await started()
    expect((await machines.call('GET', id, '/ps?sort_by=rss&order=desc')).body).toMatchObject([
      { pid: 1, command: 'program' },
    ])
    for (const signal of ['SIGHUP', 'usr1', 9])
      expect((await machines.call('POST', id, '/signal', { body: { signal } })).body).toEqual({ ok: true })
    for (const signal of ['SIGNOPE', 0, 99, '', null])
      expect((await machines.call('POST', id, '/signal', { body: { signal } })).status).toBe(400)
  })

  test('memory can be changed while it runs, within its limits, and reclaimed', async () => {
    const id = await started({}, { guest: { memory_mb: 256, max_memory_mb: 512 } })
    const put = (limit_mb: unknown) => machines.call('PUT', id, '/memory', { body: { limit_mb } })
    expect((await machines.call('GET', id, '/memory')).body).toEqual({ limit_mb: 256, available_mb: 255 })
    expect(await put(512)).toMatchObject({ status: 200, body: { limit_mb: 512, available_mb: 511 } })
    expect((await machines.call('GET', id, '/memory')).body.limit_mb).toBe(512)
    expect((await put(128)).body).toEqual({ limit_mb: 128, available_mb: 127 })
    expect(await put(1)).toMatchObject({ status: 412, body: { error: expect.stringContaining('uses more than 1 MB') } })
    expect(await put(513)).toMatchObject({ status: 400, body: { error: expect.stringContaining('at most 512') } })
    for (const wrong of [0, -1, 1.5, '256', undefined]) expect((await put(wrong)).status).toBe(400)
    const reclaim = (body: object) => machines.call('POST', id, '/memory/reclaim', { body })
    expect((await reclaim({ amount_mb: 1 })).body).toEqual({ actual_mb: 1 })
    expect((await reclaim({ amount_mb: 0 })).body).toEqual({ actual_mb: 0 })
    expect((await reclaim({})).body).toEqual({ actual_mb: 3 })
    expect((await reclaim({ amount_mb: -1 })).status).toBe(400)
    await machines.call('POST', id, '/stop')
    await settle()
    expect((await machines.call('GET', id, '/memory')).body).toEqual({ limit_mb: 256, available_mb: 256 })
    expect((await put(256)).status).toBe(412)
    expect((await reclaim({})).status).toBe(412)
    const other = await started()
    expect((await machines.call('PUT', other, '/memory', { body: { limit_mb: 512 } })).status).toBe(400)
  })

  test('logs of a machine and of an app are ordered by time', async () => {
    const [a, b] = [await started(), await started({ region: 'fra' })]
    fake.machines.machines
      .get(a)!
      .log.push({ at: 1, stream: 'stdout', text: 'one' }, { at: 3, stream: 'stderr', text: 'three' })
    fake.machines.machines.get(b)!.log.push({ at: 2, stream: 'stdout', text: 'two' })
    const lines = (reply: { body: string }) =>
      reply.body
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line))
    expect(lines(await machines.call('GET', a, '/logs'))).toEqual([
      { timestamp: '1970-01-01T00:00:00.001Z', message: 'one', stream: 'stdout', instance: a, region: 'local' },
      { timestamp: '1970-01-01T00:00:00.003Z', message: 'three', stream: 'stderr', instance: a, region: 'local' },
    ])
    const all = await call('GET', '/v1/apps/shop/logs?lines=2')
    expect(lines(all).map(({ message, instance }) => [message, instance])).toEqual([
      ['two', b],
      ['three', a],
    ])
    expect((await call('GET', '/v1/apps/shop/logs?lines=many')).status).toBe(400)
  })

  test('logs can be polled page by page', async () => {
    const [a, b] = [await started(), await started({ region: 'fra' })]
    const page = (query: object) =>
      call('GET', `/api/v1/apps/shop/logs?${new URLSearchParams({ next_token: '', ...query })}`)
    expect((await page({})).body).toEqual({ data: [], meta: { next_token: '' } })
    const say = (id: string, at: number, text: string) =>
      fake.machines.machines.get(id)!.log.push({ at, stream: 'stdout', text })
    const now = Date.now()
    say(a, now - 5000.25, 'one')
    say(b, now - 4000, 'two')
    const first = await page({})
    expect(first.body.data).toMatchObject([
      { attributes: { message: 'one', level: 'info', instance: a, region: 'local', meta: { instance: a } } },
      { attributes: { message: 'two', instance: b, region: 'fra', meta: { event: { provider: 'app' } } } },
    ])
    const { next_token } = first.body.meta
    expect(next_token).toMatch(/^\d{19}$/)
    expect((await page({ next_token })).body).toEqual({ data: [], meta: { next_token } })
    say(a, now - 3000, 'three')
    say(b, now + 60_000, 'not there yet')
    const second = await page({ next_token })
    expect(second.body.data).toMatchObject([{ attributes: { message: 'three', instance: a } }])
    const messages = async (query: object) =>
      (await page(query)).body.data.map(({ attributes }: { attributes: { message: string } }) => attributes.message)
    expect(await messages({ instance: b })).toEqual(['two'])
    expect(await messages({ region: 'local' })).toEqual(['one', 'three'])
    expect(await messages({ next_token: '1' })).toEqual(['one', 'two', 'three'])
    for (let at = 0; at < 1500; at++) say(b, now - 2000 + Math.floor(at / 10), String(at))
    let token = second.body.meta.next_token
    const seen: string[] = []
    for (let pages = 0; pages < 3; pages++) {
      const { body } = await page({ next_token: token })
      seen.push(...body.data.map(({ attributes }: { attributes: { message: string } }) => attributes.message))
      token = body.meta.next_token
    }
    expect(seen).toEqual(Array.from({ length: 1500 }, (_, at) => String(at)))
    expect((await page({ next_token: 'x' })).status).toBe(422)
  })
})

describe('access', () => {
  test('strangers, readers and requests for missing machines are refused', async () => {
    const id = await started()
    await platform.createOrg('acme')
    const stranger = await platform.createToken('org', 'acme')
    const reader = await platform.createToken('read', 'personal')
    const config = { image: 'nginx' }
    const writes = [
      ['POST', path, { config }],
      ['POST', `${path}/${id}`, { config }],
      ['DELETE', `${path}/${id}?force=true`],
      ...['start', 'stop', 'restart', 'suspend', 'cordon', 'uncordon', 'lease'].map((word) => [
        'POST',
        `${path}/${id}/${word}`,
      ]),
      ['POST', `${path}/${id}/signal`, { signal: 9 }],
      ['POST', `${path}/${id}/exec`, { command: ['true'] }],
      ['PUT', `${path}/${id}/metadata`, { metadata: {} }],
      ['PUT', `${path}/${id}/memory`, { limit_mb: 256 }],
      ['POST', `${path}/${id}/memory/reclaim`, { amount_mb: 1 }],
    ] as [never, string, object?][]
    const reads = [
      '',
      `/${id}`,
      `/${id}/wait`,
      `/${id}/events`,
      `/${id}/versions`,
      `/${id}/ps`,
      `/${id}/metadata`,
      `/${id}/memory`,
      `/${id}/logs`,
    ].map((rest) => ['GET', path + rest] as [never, string])
    reads.push(['GET' as never, '/api/v1/apps/shop/logs'])
    for (const [method, url, body] of [...writes, ...reads]) {
      const options = body ? { body } : {}
      expect(await call(method, url, { ...options, token: stranger }), `${method} ${url}`).toMatchObject({
        status: 403,
        body: { error: 'unauthorized' },
      })
      expect((await call(method, url, { ...options, token: 'berth_none' })).status, url).toBe(401)
      const absent = url.replace('/shop/', '/nothing/')
      expect(await call(method, absent, options), absent).toMatchObject({
        status: 404,
        body: { error: 'app not found' },
      })
      if (!url.includes(id)) continue
      const unknown = url.replace(id, '00000000000000')
      expect(await call(method, unknown, options), unknown).toMatchObject({
        status: 404,
        body: { error: 'machine not found' },
      })
    }
    for (const [method, url, body] of writes) {
      expect((await call(method, url, { ...(body && { body }), token: reader })).status, url).toBe(403)
    }
    for (const [method, url] of reads) expect((await call(method, url, { token: reader })).status, url).toBe(200)
    expect(await state(id)).toBe('started')
  })
})
