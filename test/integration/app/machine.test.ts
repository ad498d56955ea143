import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { fake, call } = platform
const machines = machinesOf(platform, 'shop')
const { create, started, settle, state, events, path } = machines

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
      restart_count: 0,
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
    expect(await machines.call('GET', body.id)).toMatchObject({ body: { state: 'stopped', cordoned: true } })
    expect(fake.machines.machines.size).toBe(0)
    const begun = await machines.call('POST', body.id, '/start')
    expect(begun.body).toEqual({ previous_state: 'stopped', migrated: false, new_host: '' })
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
      { name: 'data', path: '/x', volume: volume.body.id, size_gb: 3 },
    ])
    await machines.call('POST', named, '', { body: { config: { image: 'nginx' } } })
    await settle()
    expect((await call('GET', `/v1/apps/shop/volumes/${volume.body.id}`)).body.attached_machine_id).toBeNull()
  })
})

describe('access', () => {
  test('other organizations, read tokens and requests for missing machines are rejected', async () => {
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
