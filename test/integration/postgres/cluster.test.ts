import { inspect } from 'node:util'
import { describe, expect, test } from 'vitest'
import { isVerifierOf } from '../../../src/drivers/postgres/sql/scram.ts'
import { runLease } from '../../../src/reconcile/loop.ts'
import { leaseDue } from '../../../src/store/work.ts'
import { breakable } from '../../support/breakable.ts'
import { untilOneWaits } from '../../support/db.ts'
import { type CallOptions, usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { fake } = platform

const create = (extra: object = {}, options: CallOptions = {}) =>
  platform.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', ...extra }, ...options })
const show = (id: string) => platform.call('GET', `/v1/postgres/${id}`)
const remove = (id: string) => platform.call('DELETE', `/v1/postgres/${id}`)
const list = (query: string, options: CallOptions = {}) => platform.call('GET', `/v1/postgres?${query}`, options)

async function created(extra: object = {}): Promise<string> {
  const made = await create(extra)
  expect(made.status, JSON.stringify(made.body)).toBe(201)
  return made.body.data.id
}

const underWay = `select id from cluster where state in ('creating', 'initializing', 'deleting')`

/** Runs the loop until all clusters have settled. Some tests make driver calls fail on purpose. */
async function settle(turns = 60): Promise<void> {
  for (let i = 0; i < turns; i++) {
    await platform.sql(`update work set run_at = 'infinity', leased_until = null`)
    await platform.sql(`update work set run_at = now() where resource_id in (${underWay})`)
    if (!(await platform.turn().catch(() => true))) return
  }
  throw new Error(`not settled after ${turns} turns: ${inspect(await platform.sql('select * from work'))}`)
}

async function ready(extra: object = {}): Promise<string> {
  const id = await created(extra)
  await settle()
  expect((await show(id)).body.data.status).toBe('ready')
  return id
}

/** Checks a ready cluster once, including its disk on request. */
async function look(id: string, { closely = false } = {}) {
  if (closely) await platform.sql('update cluster set quota_checked_at = null where id = $1', [id])
  await lookOnce(id)
  return (await show(id)).body.data
}

/** Delays all other work. A turn that only starts something that was due, such as a first backup, does not count. */
async function lookOnce(id: string): Promise<void> {
  for (let looks = 0; looks < 5; looks++) {
    await platform.sql(`update work set run_at = 'infinity', leased_until = null`)
    await platform.sql('update work set run_at = now() where resource_id = $1', [id])
    await platform.turn()
    const [work] = await platform.sql('select note from work where resource_id = $1', [id])
    if (!/is due$/.test(work.note)) return
  }
}

async function eventsOf(id: string): Promise<string[]> {
  return (await platform.sql('select event from event where resource_id = $1 order by id', [id])).map(
    (row) => row.event,
  )
}

/** The uid is free again too, because its index excludes deleted clusters. */
async function expectNothingLeft(): Promise<void> {
  expect([...fake.clusters.keys()]).toEqual([])
  expect([...fake.poolers]).toEqual([])
  expect([...fake.limits]).toEqual([])
  for (const table of ['cluster_port', 'cluster_user', 'attachment']) {
    expect(await platform.sql(`select * from ${table}`), table).toEqual([])
  }
}

async function startAfresh(): Promise<void> {
  fake.reset()
  platform.loopDb = undefined
  await platform.clear()
}

describe('creating a cluster', () => {
  test('answers 201 with the requested settings and without endpoints', async () => {
    const made = await create({
      name: 'shop',
      plan: 'launch',
      region: 'fra',
      disk_size_gb: 25,
      pg_major_version: '17',
      postgis_enabled: false,
      pool_mode: 'transaction',
      unknown_field: 'ignored',
    })
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      data: {
        id: expect.stringMatching(/^[a-z0-9]{16}$/),
        name: 'shop',
        organization: { name: 'Personal', slug: 'personal', internal_numeric_id: expect.any(Number) },
        status: 'creating',
        plan: 'launch',
        pg_major_version: '17',
        pg_version: null,
        pg_newest_version: null,
        cpu_kind: 'performance',
        cpus: 2,
        memory_mb: 8192,
        disk_size_gb: 25,
        replicas: 0,
        region: 'fra',
        postgis_enabled: false,
        pool_mode: 'transaction',
        retention_days: 7,
        maintenance_window: null,
        created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/),
        attached_apps: [],
        storage_provisioned_bytes: null,
        storage_used_bytes: null,
        recovery_window: null,
        recovery_windows: [],
      },
    })
  })

  test('fills in defaults for omitted fields', async () => {
    expect((await create()).body.data).toMatchObject({
      name: expect.stringMatching(/^[a-z]+-[a-z]+-\d{4}$/),
      pg_major_version: '16',
      disk_size_gb: 10,
      replicas: 0,
      region: 'local',
      postgis_enabled: false,
      pool_mode: 'session',
    })
  })

  test.each([
    ['basic', 'basic', 'shared', 2, 1024],
    ['STARTER', 'starter', 'shared', 2, 2048],
    ['Launch', 'launch', 'performance', 2, 8192],
    ['sCaLe', 'scale', 'performance', 4, 32_768],
    ['performance', 'Performance', 'performance', 8, 65_536],
    ['Performance', 'Performance', 'performance', 8, 65_536],
  ])('accepts the plan %s and returns it as %s', async (asked, plan, cpu_kind, cpus, memory_mb) => {
    expect((await create({ plan: asked })).body.data).toMatchObject({ plan, cpu_kind, cpus, memory_mb })
  })

  test.each([
    [{ plan: 'huge' }, /^plan must be one of basic, starter, launch, scale, Performance$/],
    [{ plan: '' }, /^plan /],
    [{ plan: 5 }, /^plan must be a string$/],
    [{ plan: null }, /^plan /],
    [{ plan: undefined }, /^plan is required$/],
    [{ org_slug: undefined }, /^org_slug is required$/],
    [{ org_slug: '' }, /^org_slug is required$/],
    [{ org_slug: 7 }, /^org_slug /],
    [{ org_slug: ['personal'] }, /^org_slug /],
    [{ region: 'No Region' }, /^region /],
    [{ region: 'x' }, /^region /],
    [{ region: 'fra-' }, /^region /],
    [{ region: 'a'.repeat(33) }, /^region /],
    [{ region: 5 }, /^region /],
    [{ region: '../fra' }, /^region /],
    [{ region: 'fr\u0000a' }, /^region /],
    [{ disk_size_gb: 0 }, /^disk_size_gb /],
    [{ disk_size_gb: -1 }, /^disk_size_gb /],
    [{ disk_size_gb: 501 }, /^disk_size_gb /],
    [{ disk_size_gb: 1.5 }, /^disk_size_gb /],
    [{ disk_size_gb: '10' }, /^disk_size_gb /],
    [{ disk_size_gb: null }, /^disk_size_gb /],
    [{ disk_size_gb: 1e300 }, /^disk_size_gb /],
    [{ pg_major_version: '15' }, /^pg_major_version must be one of 16, 17$/],
    [{ pg_major_version: '18' }, /^pg_major_version /],
    [{ pg_major_version: 17 }, /^pg_major_version /],
    [{ pg_major_version: '17.1' }, /^pg_major_version /],
    [{ postgis_enabled: 'true' }, /^postgis_enabled /],
    [{ postgis_enabled: 1 }, /^postgis_enabled /],
    [
      { postgis_enabled: true },
      /^postgis_enabled: the PostgreSQL 16 installation of this platform has no PostGIS; its operator can install the package postgresql-16-postgis-3$/,
    ],
    [{ postgis_enabled: true, pg_major_version: '17' }, /PostgreSQL 17 .* no PostGIS/],
    [{ pool_mode: 'statement' }, /^pool_mode must be one of session, transaction$/],
    [{ pool_mode: true }, /^pool_mode /],
    [{ name: 5 }, /^name must be a string$/],
    [{ name: {} }, /^name /],
  ])('refuses %j, naming the field', async (extra, message) => {
    const made = await create(extra)
    expect(made.body.error).toMatch(message)
    expect(made.status).toBe(422)
    expect(Object.keys(made.body)).toEqual(['error'])
    expect(await platform.sql('select id from cluster')).toEqual([])
  })

  test.each(['UPPER', '-a', 'a-', 'a_b', 'a.b', 'a b', 'ä', '../x', 'a\u0000b', 'a'.repeat(64), '💥', ' a'])(
    'refuses the name %j',
    async (name) => {
      const made = await create({ name })
      expect(made).toMatchObject({ status: 422, body: { error: expect.stringMatching(/^name must be /) } })
      expect(await platform.sql('select id from cluster')).toEqual([])
    },
  )

  test.each(['a', '0', 'a--b', 'a'.repeat(63)])('accepts the name %j', async (name) => {
    expect((await create({ name })).body.data.name).toBe(name)
  })

  test.each(['', '   '])('generates a name for %j', async (name) => {
    expect((await create({ name })).body.data.name).toMatch(/^[a-z]+-[a-z]+-\d{4}$/)
  })

  test.each([1, 500])('accepts a disk of %i GB', async (disk_size_gb) => {
    expect((await create({ disk_size_gb })).body.data.disk_size_gb).toBe(disk_size_gb)
  })

  test.each(['not json', '[]', '"x"', 'null', '{'])('with the body %s answers 400', async (raw) => {
    expect((await platform.call('POST', '/v1/postgres', { raw })).status).toBe(400)
  })

  test('in an unknown or foreign organization answers 404', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    for (const org_slug of ['nobody', 'personal', 'a\u0000']) {
      expect(await create({ org_slug }, { token, body: { org_slug, plan: 'basic' } })).toMatchObject({
        status: 404,
        body: { error: 'organization not found' },
      })
    }
  })

  test('rejects a name that is taken in the same organization, but not in another one', async () => {
    await platform.createOrg('acme')
    await created({ name: 'taken' })
    expect(await create({ name: 'taken' })).toMatchObject({
      status: 422,
      body: { error: 'name taken has already been taken' },
    })
    expect((await create({ name: 'taken', org_slug: 'acme' })).status).toBe(201)
  })

  test('fifty concurrent requests with one name create one cluster', async () => {
    const replies = await Promise.all(Array.from({ length: 50 }, () => create({ name: 'race' })))
    expect(replies.filter((reply) => reply.status === 201)).toHaveLength(1)
    expect(replies.filter((reply) => reply.status === 422)).toHaveLength(49)
    expect(await platform.sql('select count(*) from cluster')).toEqual([{ count: 1 }])
    expect(await platform.sql('select count(*) from cluster_user')).toEqual([{ count: 1 }])
    expect(await platform.sql('select count(*) from work')).toEqual([{ count: 1 }])
  })

  test('reserves a name until its cluster is deleted', async () => {
    const id = await ready({ name: 'again' })
    await remove(id)
    expect((await create({ name: 'again' })).status).toBe(422)
    await settle()
    expect((await create({ name: 'again' })).status).toBe(201)
  })

  test('creates one cluster for repeated requests with the same Idempotency-Key', async () => {
    const options = { headers: { 'idempotency-key': 'once' } }
    const first = await create({ name: 'once' }, options)
    expect(await create({ name: 'once' }, options)).toMatchObject({ status: 201, body: first.body })
    expect((await create({ name: 'twice' }, options)).status).toBe(422)
    expect(await platform.sql('select count(*) from cluster')).toEqual([{ count: 1 }])
  })

  test('stores the password of the default user encrypted', async () => {
    const id = await ready()
    const reply = await platform.call('GET', `/v1/postgres/${id}/users/fly-user/credentials`)
    const { username, password } = reply.body.data
    expect(username).toBe('fly-user')
    expect(password).toMatch(/^[A-Za-z0-9]{24}$/)
    const [stored] = await platform.sql(`select encode(password, 'escape') as text from cluster_user`)
    expect(stored.text).not.toContain(password)
  })
})

describe('creating a cluster within the configuration of the operator', () => {
  const installedExtensions = { '16': new Set<string>(), '17': new Set(['postgis', 'vector', 'citext', 'file_fdw']) }
  const strict = usePlatform({ settings: { regions: ['fra', 'iad'], defaultRegion: 'fra', installedExtensions } })
  const ask = (extra: object) =>
    strict.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', ...extra } })

  test('accepts only the configured regions, with the first one as the default', async () => {
    expect((await ask({})).body.data.region).toBe('fra')
    expect((await ask({ region: 'iad' })).body.data.region).toBe('iad')
    expect(await ask({ region: 'lhr' })).toMatchObject({
      status: 422,
      body: { error: 'region must be one of fra, iad' },
    })
  })

  test('accepts PostGIS only if the installation of that version has it', async () => {
    expect((await ask({ postgis_enabled: true, pg_major_version: '17' })).body.data.postgis_enabled).toBe(true)
    expect((await ask({ postgis_enabled: true, pg_major_version: '16' })).status).toBe(422)
  })

  test('creates the requested extensions with an installation that has them', async () => {
    const extensions = ['vector', 'citext', 'vector']
    strict.fake.availableExtensions.push('vector')
    const { body } = await ask({ extensions, pg_major_version: '17' })
    const { id } = body.data
    await until(async () => {
      await strict.sql('update work set run_at = now()')
      await strict.turn()
      return (await strict.call('GET', `/v1/postgres/${id}`)).body.data.status === 'ready'
    })
    expect(strict.fake.needs).toContainEqual({ extensions: ['vector', 'citext'], current: null })
    expect(strict.fake.extensions.get(id)).toEqual(['vector', 'citext'])
  })

  test.each([
    [
      ['vector'],
      '16',
      'extensions: PostgreSQL 16 of this platform has no vector; its operator can install the package postgresql-16-pgvector',
    ],
    [['nonsense'], '17', 'extensions: PostgreSQL 17 of this platform has no nonsense'],
    [['file_fdw'], '17', 'extensions: PostgreSQL 17 of this platform has no file_fdw'],
    [['postgis'], '17', 'extensions: postgis needs postgis_enabled'],
  ])('refuses the extensions %j of PostgreSQL %s', async (extensions, pg_major_version, error) => {
    expect(await ask({ extensions, pg_major_version })).toMatchObject({ status: 422, body: { error } })
  })

  test.each([[Array(21).fill('vector')], [['']], ['vector'], [[7]]])(
    'refuses %j as a list of extensions',
    async (extensions) => {
      expect((await ask({ extensions, pg_major_version: '17' })).status).toBeGreaterThanOrEqual(400)
    },
  )
})

describe('getting a cluster', () => {
  test('shows every documented field, and the endpoints of a ready cluster', async () => {
    const id = await created({ name: 'shown', plan: 'performance', disk_size_gb: 3 })
    expect((await show(id)).body.data).not.toHaveProperty('endpoints')
    await settle()
    await look(id)
    const reply = await show(id)
    expect(reply.status).toBe(200)
    expect(reply.body).toEqual({
      data: {
        id,
        name: 'shown',
        organization: { name: 'Personal', slug: 'personal', internal_numeric_id: expect.any(Number) },
        status: 'ready',
        plan: 'Performance',
        pg_major_version: '16',
        pg_version: '16.1',
        pg_newest_version: '16.1',
        cpu_kind: 'performance',
        cpus: 8,
        memory_mb: 65_536,
        disk_size_gb: 3,
        replicas: 0,
        region: 'local',
        postgis_enabled: false,
        pool_mode: 'session',
        retention_days: 7,
        maintenance_window: null,
        created_at: expect.stringMatching(/Z$/),
        attached_apps: [],
        endpoints: {
          primary: {
            direct: { host: 'localhost', port: expect.any(Number) },
            pooler: { host: 'localhost', port: expect.any(Number) },
          },
        },
        private_endpoints: {
          direct: { host: `direct.${id}.pg.internal`, port: 5432 },
          pooler: { host: `${id}.pg.internal`, port: 5432 },
        },
        storage_provisioned_bytes: 3 * 1024 ** 3,
        storage_used_bytes: fake.usedBytes,
        health: { status: 'ok', reason: '', since: expect.stringMatching(/Z$/) },
        recovery_window: null,
        recovery_windows: [],
      },
    })
    const { direct, pooler } = reply.body.data.endpoints.primary
    for (const { port } of [direct, pooler]) {
      expect(port).toBeGreaterThanOrEqual(fake.ports.first)
      expect(port).toBeLessThanOrEqual(fake.ports.last)
    }
    expect(direct.port).not.toBe(pooler.port)
  })

  test('shows neither endpoints nor health in any other state', async () => {
    const id = await created()
    for (const state of ['creating', 'initializing', 'failed', 'deleting']) {
      await platform.sql('update cluster set state = $1', [state])
      const { data } = (await show(id)).body
      expect(data.status).toBe(state)
      for (const field of ['endpoints', 'private_endpoints', 'health']) expect(data).not.toHaveProperty(field)
    }
  })

  test.each(['abcdefghij123456', 'x', '%00', '..%2F', 'A'.repeat(16), 'a'.repeat(200), "'; drop"])(
    '%s is not found',
    async (id) => {
      expect(await show(encodeURI(decodeURI(id)))).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
    },
  )
})

describe('listing clusters', () => {
  test('returns summaries in the order of creation', async () => {
    for (const name of ['b', 'c', 'a']) await created({ name })
    const reply = await list('org_slug=personal')
    expect(reply.status).toBe(200)
    expect(reply.body.data.map((item: { name: string }) => item.name)).toEqual(['b', 'c', 'a'])
    expect(reply.body.data[0]).toEqual({
      id: expect.any(String),
      name: 'b',
      status: 'creating',
      region: 'local',
      plan: 'basic',
      created_at: expect.stringMatching(/Z$/),
      attached_apps: [],
    })
  })

  test('returns an empty list for an empty organization', async () => {
    expect(await list('org_slug=personal')).toMatchObject({ status: 200, body: { data: [] } })
  })

  test('includes deleted clusters and their deletion time only on request', async () => {
    await ready({ name: 'stays' })
    const gone = await ready({ name: 'goes' })
    await remove(gone)
    expect((await list('org_slug=personal')).body.data).toMatchObject([{ name: 'stays' }, { status: 'deleting' }])
    await settle()
    for (const query of ['org_slug=personal', 'org_slug=personal&include_deleted=false']) {
      expect((await list(query)).body.data.map((item: { name: string }) => item.name)).toEqual(['stays'])
    }
    const all = (await list('org_slug=personal&include_deleted=true')).body.data
    expect(all).toMatchObject([
      { name: 'stays' },
      { id: gone, name: 'goes', status: 'deleted', deleted_at: expect.stringMatching(/Z$/), attached_apps: [] },
    ])
    expect(all[0]).not.toHaveProperty('deleted_at')
  })

  test('returns only clusters of the requested organization', async () => {
    await platform.createOrg('acme')
    await created({ name: 'ours', org_slug: 'acme' })
    await created({ name: 'theirs' })
    const token = await platform.createToken('read', 'acme')
    expect((await list('org_slug=acme', { token })).body.data).toMatchObject([{ name: 'ours' }])
    expect(await list('org_slug=personal', { token })).toMatchObject({
      status: 404,
      body: { error: 'organization not found' },
    })
  })

  test.each([
    ['', 422, 'org_slug'],
    ['org_slug=', 422, 'org_slug'],
    ['org_slug=personal&org_slug=acme', 422, 'org_slug'],
    ['org_slug=personal&include_deleted=maybe', 422, 'include_deleted'],
    ['org_slug=nobody', 404, 'organization'],
    ['org_slug=%00', 404, 'organization'],
  ])('?%s answers %i and names the parameter', async (query, status, word) => {
    const reply = await list(query)
    expect(reply.status).toBe(status)
    expect(reply.body.error).toContain(word)
  })
})

describe('deleting a cluster', () => {
  test.each(['creating', 'initializing', 'ready', 'failed'])(
    'works while it is %s, and leaves nothing behind',
    async (state) => {
      const id = await created()
      if (state === 'failed') fake.freeBytes = 0
      for (let turns = 0; (await show(id)).body.data.status !== state; turns++) {
        if (turns > 10) throw new Error(`never ${state}`)
        await platform.sql('update work set run_at = now()')
        await platform.turn()
      }
      expect(await remove(id)).toMatchObject({ status: 202, body: '' })
      expect((await show(id)).body.data.status).toBe('deleting')
      expect((await remove(id)).status).toBe(202)
      await settle()
      expect((await eventsOf(id)).slice(-2)).toEqual(['delete', 'gone'])
      expect(await show(id)).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
      expect(await remove(id)).toMatchObject({ status: 410, body: { error: 'Cluster is already deleted' } })
      await expectNothingLeft()
    },
  )

  test('ten concurrent requests delete it once', async () => {
    const id = await ready()
    const replies = await Promise.all(Array.from({ length: 10 }, () => remove(id)))
    expect(replies.map((reply) => reply.status)).toEqual(Array(10).fill(202))
    await settle()
    expect(await eventsOf(id)).toEqual(['placed', 'ready', 'delete', 'gone'])
  })

  test('answers 404 for a cluster that never existed', async () => {
    expect(await remove('abcdefghij123456')).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
  })

  test('makes every other operation on it answer 404', async () => {
    const id = await ready()
    await remove(id)
    const ask = () => platform.call('GET', `/v1/postgres/${id}/users`)
    expect(await ask()).toMatchObject({ status: 422, body: { error: expect.stringContaining('deleting') } })
    await settle()
    expect((await ask()).status).toBe(404)
  })
})

test('a cluster is not ready before both endpoints answer', async () => {
  fake.probeProblem = 'sorry, too many clients already'
  fake.probeCode = '53300'
  const id = await created()
  await expect(settle(3)).rejects.toThrow('not settled')
  expect((await show(id)).body.data.status).toBe('initializing')
  fake.probeProblem = undefined
  await settle()
  expect((await show(id)).body.data.status).toBe('ready')
})

describe('the password of a user', () => {
  const rotate = (id: string, key = 'k1') => {
    const request = { body: { kill_sessions: true }, headers: { 'idempotency-key': key } }
    return platform.call('POST', `/v1/postgres/${id}/users/fly-user/rotate_password`, request)
  }
  const credentials = async (id: string) =>
    (await platform.call('GET', `/v1/postgres/${id}/users/fly-user/credentials`)).body.data

  test('does not change if the pooler cannot list its sessions', async () => {
    const id = await ready()
    const before = await credentials(id)
    fake.clusters.get(id)!.password = false
    fake.poolerSilent = true
    expect((await rotate(id)).status).toBe(503)
    expect(fake.clusters.get(id)!.password).toBe(false)
    expect(await credentials(id)).toEqual(before)
    fake.poolerSilent = false
    const rotated = await rotate(id)
    expect(rotated.status).toBe(200)
    expect(await credentials(id)).toEqual(rotated.body.data)
    expect(rotated.body.data.password).not.toBe(before.password)
  })

  test('matches the one in effect, wherever a rotation was interrupted', async () => {
    const id = await ready()
    for (let call = 1, isDone = false; !isDone; call++) {
      fake.breakCall(call)
      isDone = (await rotate(id, `stopped-${call}`)).status === 200
      fake.breakCall(0)
      await platform.sql(`update cluster_user set next_password_at = now() - interval '1 minute'`)
      await look(id)
      const verifier = fake.verifiers.get(id)!
      expect({ call, isShown: isVerifierOf(verifier, (await credentials(id)).password) }).toEqual({
        call,
        isShown: true,
      })
    }
    expect(await platform.sql('select next_password from cluster_user')).toEqual([{ next_password: null }])
  })

  test('can be rotated by many requests without blocking other requests', async () => {
    const id = await ready()
    const held = Promise.withResolvers<void>()
    const asked = Promise.withResolvers<void>()
    fake.onCall = () => {
      asked.resolve()
      return held.promise
    }
    const waiting = Array.from({ length: 12 }, (_, i) => rotate(id, `waiting-${i}`))
    await asked.promise
    try {
      expect(
        (await platform.call('POST', '/v1/apps', { body: { app_name: 'web', org_slug: 'personal' } })).status,
      ).toBe(201)
    } finally {
      fake.onCall = () => undefined
      held.resolve()
    }
    for (const reply of await Promise.all(waiting)) expect(reply.status).toBe(200)
  })

  test('can be rotated for a user without a stored password', async () => {
    const id = await ready()
    await platform.sql('delete from cluster_user')
    const rotated = await rotate(id)
    expect(rotated.status).toBe(200)
    expect(await credentials(id)).toEqual(rotated.body.data)
  })
})

describe('a database', () => {
  test('can be created while the supervisor is unavailable, because the pooler needs no list of them', async () => {
    const id = await ready()
    fake.poolerProblem = 'the supervision tree is not running'
    const made = await platform.call('POST', `/v1/postgres/${id}/databases`, { body: { name: 'more' } })
    expect(made.status).toBe(201)
    expect((await look(id)).health).toMatchObject({ status: 'degraded', reason: 'the supervision tree is not running' })
    fake.poolerProblem = undefined
    expect((await look(id)).health.status).toBe('ok')
  })
})

describe('an extension', () => {
  test('that is not installed is refused with the name of its package', async () => {
    const id = await ready()
    const enable = (name: string) =>
      platform.call('POST', `/v1/postgres/${id}/databases/fly-db/extensions`, { body: { name } })
    expect(await enable('vector')).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('its operator can install the package postgresql-16-pgvector') },
    })
    expect(await enable('nonsense')).toMatchObject({ status: 404, body: { error: 'Extension nonsense not found' } })
    expect(await enable('hypopg')).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('create a cluster with it ("extensions": ["hypopg"])') },
    })
  })
})

describe('before it is ready', () => {
  test('a cluster is placed, initialized, and then ready', async () => {
    const id = await created()
    const seen: string[] = []
    for (let turns = 0; turns < 3; turns++) {
      seen.push((await show(id)).body.data.status)
      await platform.sql('update work set run_at = now()')
      await platform.turn()
    }
    expect(seen).toEqual(['creating', 'initializing', 'ready'])
    expect(await eventsOf(id)).toEqual(['placed', 'ready'])
    expect(fake.clusters.get(id)).toMatchObject({ process: { is: 'ready' }, password: true })
    const [row] = await platform.sql('select uid, toolchain from cluster')
    expect(row.uid).toBeGreaterThan(300_000)
    expect(row.toolchain).toMatchObject({ major: '16', version: '16.1', source: 'npm', bin: '/bin-16.1' })
  })

  test('its users, databases and backups are not available yet', async () => {
    const id = await created()
    for (const path of ['users', 'databases', 'users/fly-user/credentials', 'databases/fly-db/extensions']) {
      expect(await platform.call('GET', `/v1/postgres/${id}/${path}`)).toMatchObject({
        status: 422,
        body: { error: 'Cluster is creating; this works once it is ready' },
      })
    }
  })

  async function failed(): Promise<string> {
    const id = await created()
    await settle()
    const { data } = (await show(id)).body
    expect(data.status).toBe('failed')
    expect(data).not.toHaveProperty('endpoints')
    await platform.sql('update work set run_at = now()')
    expect(await platform.turn()).toMatchObject({ result: 'wait' })
    expect(await platform.sql('select note from work')).toEqual([{ note: 'stopped' }])
    expect(await platform.call('GET', `/v1/postgres/${id}/users`)).toMatchObject({
      status: 422,
      body: { error: 'Cluster is failed; it will not become ready' },
    })
    return data.failure
  }

  test('it fails without a toolchain and says what to install', async () => {
    fake.toolchainProblem = 'PostgreSQL 16 was not found: run npm ci'
    expect(await failed()).toBe('PostgreSQL 16 was not found: run npm ci')
  })

  test('it fails without free ports and names the setting', async () => {
    fake.ports = { first: 15_000, last: 15_000 }
    expect(await failed()).toBe('no free ports in 15000-15000; widen BERTH_PG_PORTS')
  })

  test('it fails if other programs listen on all ports', async () => {
    fake.ports = { first: 15_000, last: 15_009 }
    for (let port = 15_000; port < 15_009; port++) fake.boundPorts.add(port)
    expect(await failed()).toContain('no free ports')
  })

  test('it fails without disk space and says how much is needed', async () => {
    fake.freeBytes = 100 * 1024 ** 2
    expect(await failed()).toBe('not enough disk space: 100 MB are free, 256 MB are needed')
  })

  test('it fails if the disk becomes full during initialization', async () => {
    fake.dataProblem = 'cp: error writing: No space left on device'
    expect(await failed()).toBe('the disk is full')
  })

  test('a failed cluster can be deleted and its name reused', async () => {
    fake.freeBytes = 0
    const id = await created({ name: 'second-try' })
    await settle()
    await remove(id)
    await settle()
    await expectNothingLeft()
    fake.freeBytes = 10 ** 12
    await ready({ name: 'second-try' })
  })

  test('a server that never starts fails after its deadline, with the last line of its log', async () => {
    fake.neverStarts = true
    const id = await created()
    for (let turns = 0; turns < 2; turns++) {
      await platform.sql('update work set run_at = now()')
      await platform.turn()
      for (const cluster of fake.clusters.values()) cluster.process = { is: 'stopped', log: ['FATAL:  out of luck'] }
    }
    await platform.sql('update work set run_at = now()')
    await platform.turn()
    expect((await show(id)).body.data.status).toBe('initializing')
    expect(await platform.sql('select note from work')).toEqual([
      { note: 'PostgreSQL is stopped: FATAL:  out of luck' },
    ])
    await platform.sql(`update cluster set state_since = now() - interval '6 minutes'`)
    await settle()
    const { data } = (await show(id)).body
    expect(data.status).toBe('failed')
    expect(data.failure).toContain('5 minutes')
    expect(data.failure).toContain('FATAL:  out of luck')
  })

  test('a cluster whose steps always throw fails after its deadline, with the last error', async () => {
    fake.startProblem = 'PgBouncer is not installed'
    const id = await created()
    for (let turns = 0; turns < 3; turns++) {
      await platform.sql('update work set run_at = now()')
      await platform.turn()
    }
    await platform.sql(`update cluster set state_since = now() - interval '6 minutes'`)
    await settle()
    expect((await show(id)).body.data).toMatchObject({
      status: 'failed',
      failure: expect.stringContaining('PgBouncer is not installed'),
    })
  })

  test('a step that never ends is abandoned, and the cluster fails after its deadline with that reason', async () => {
    const id = await created()
    const world = fake.world(platform.database.db)
    const hosting = { ...world.hosting, findToolchain: () => new Promise<never>(() => {}) }
    const [lease] = await leaseDue(platform.database.db, 1)
    const found = await runLease({ ...world, hosting }, lease!, 2)
    expect(found).toMatchObject({ result: 'error', error: { message: expect.stringContaining('did not end') } })
    await platform.sql(`update cluster set state_since = now() - interval '6 minutes'`)
    await settle()
    expect((await show(id)).body.data).toMatchObject({
      status: 'failed',
      failure: expect.stringContaining('its step while creating did not end'),
    })
  })

  test('a step that failed many times in a row is retried soon while its state has a deadline', async () => {
    fake.startProblem = 'the host is busy'
    await created()
    const delay = async () => {
      await platform.sql('update work set run_at = now(), attempts = 9')
      expect(await platform.turn()).toMatchObject({ result: 'error' })
      const [{ seconds }] = await platform.sql('select extract(epoch from run_at - now())::float8 as seconds from work')
      return seconds
    }
    await until(async () => {
      await platform.sql('update work set run_at = now()')
      return (await platform.turn())?.result === 'error'
    })
    expect(await delay()).toBeLessThanOrEqual(20)
    // A worker that died leaves the delay that leasing wrote.
    await platform.sql('update work set run_at = now(), attempts = 9')
    await leaseDue(platform.database.db, 1)
    const [{ seconds }] = await platform.sql('select extract(epoch from run_at - now())::float8 as seconds from work')
    expect(seconds).toBeLessThanOrEqual(60)
  })

  test('progress extends the deadline', async () => {
    const id = await created()
    await platform.sql(`update cluster set state_since = now() - interval '1 hour', progress_at = now()`)
    await settle()
    expect((await show(id)).body.data.status).toBe('ready')
  })
})

describe('the first backup', () => {
  const wake = (id: string) =>
    platform.sql('update work set run_at = now(), leased_until = null where resource_id = $1', [id])
  const findBackup = async () => (await platform.sql('select id, state from backup'))[0]

  async function lookAtBackup() {
    await platform.sql(`update work set run_at = 'infinity'`)
    await wake((await findBackup()).id)
    await platform.turn()
    return (await findBackup()).state
  }

  test('waits for clusters that are being created, but only for a moment', async () => {
    await look(await ready())
    await created()
    expect(await lookAtBackup()).toBe('queued')
    await platform.sql(`update backup set state_since = now() - interval '11 seconds'`)
    expect(await lookAtBackup()).toBe('running')
  })

  test('does not wait for a cluster whose creation takes long', async () => {
    await look(await ready())
    await created()
    await platform.sql(`update cluster set state_since = now() - interval '11 seconds' where state = 'creating'`)
    expect(await lookAtBackup()).toBe('running')
  })
})

describe('ports', () => {
  test('are never assigned twice, and the whole range is used', async () => {
    await platform.setQuotas({ clusters: 'unlimited' })
    fake.ports = { first: 15_000, last: 15_199 }
    const ids = await Promise.all(Array.from({ length: 100 }, (_, i) => created({ name: `n${i}` })))
    while ((await platform.sql(underWay)).length > 0) {
      await platform.sql(
        `update work set run_at = case when resource_id in (${underWay}) then now() else 'infinity' end`,
      )
      await Promise.all(Array.from({ length: 8 }, () => platform.turn()))
    }
    const given = await platform.sql('select port from cluster_port')
    expect(new Set(given.map((row) => row.port)).size).toBe(200)
    const late = await created({ name: 'late' })
    await settle()
    expect((await show(late)).body.data.failure).toContain('no free ports in 15000-15199')
    const before = (await show(ids[50]!)).body.data.endpoints.primary
    await remove(ids[50]!)
    await settle()
    const after = (await show(await ready({ name: 'after' }))).body.data.endpoints.primary
    const ports = (primary: typeof before) => [primary.direct.port, primary.pooler.port].sort()
    expect(ports(after)).toEqual(ports(before))
    const uids = await platform.sql(`select count(distinct uid) from cluster where uid is not null and state = 'ready'`)
    expect(uids).toEqual([{ count: 100 }])
  })

  test('that other programs listen on are skipped', async () => {
    fake.ports = { first: 15_000, last: 15_005 }
    fake.boundPorts = new Set([15_000, 15_002, 15_003, 15_005])
    const { primary } = (await show(await ready())).body.data.endpoints
    expect([primary.direct.port, primary.pooler.port].sort()).toEqual([15_001, 15_004])
  })

  async function placed(): Promise<{ id: string; direct: number; pooler: number }> {
    const id = await created()
    await platform.turn()
    const [ports] = await platform.sql('select direct_port as direct, pooler_port as pooler from cluster')
    return { id, ...ports }
  }

  test.each(['direct', 'pooler'] as const)(
    'are replaced if another program takes the %s one before the start',
    async (which) => {
      const { id, ...ports } = await placed()
      fake.boundPorts.add(ports[which])
      await settle()
      const { status, endpoints } = (await show(id)).body.data
      expect(status).toBe('ready')
      const { direct, pooler } = endpoints.primary
      expect([direct.port, pooler.port]).not.toContain(ports[which])
      expect(await platform.sql('select port, purpose from cluster_port order by purpose')).toEqual([
        { port: direct.port, purpose: 'direct' },
        { port: pooler.port, purpose: 'pooler' },
      ])
    },
  )

  test('that are taken before the start fail the cluster if no others are free', async () => {
    fake.ports = { first: 15_000, last: 15_001 }
    const { id, direct } = await placed()
    fake.boundPorts.add(direct)
    await settle()
    expect((await show(id)).body.data.failure).toBe('no free ports in 15000-15001; widen BERTH_PG_PORTS')
  })
})

describe('the health of a ready cluster', () => {
  test('is down with a reason while the server is, and ok afterwards', async () => {
    const id = await ready()
    const before = (await look(id)).health
    expect(before).toMatchObject({ status: 'ok', reason: '' })
    expect((await look(id)).health).toEqual(before)
    fake.neverStarts = true
    fake.kill(id, 'LOG:  starting', 'FATAL:  no luck today')
    const down = (await look(id)).health
    expect(down).toMatchObject({ status: 'down', reason: 'PostgreSQL is stopped: FATAL:  no luck today' })
    expect(down.since > before.since).toBe(true)
    expect((await look(id)).health).toEqual(down)
    expect((await show(id)).body.data).toMatchObject({ status: 'ready', endpoints: { primary: {} } })
    fake.neverStarts = false
    await look(id)
    const after = (await look(id)).health
    expect(after).toMatchObject({ status: 'ok', reason: '' })
    expect(after.since > down.since).toBe(true)
    expect(await eventsOf(id)).toEqual(['placed', 'ready'])
  })

  test('names the port that another program took while the server was down, and keeps the port', async () => {
    const id = await ready()
    const { primary } = (await show(id)).body.data.endpoints
    fake.neverStarts = true
    fake.kill(id)
    fake.boundPorts.add(primary.direct.port)
    const { health, endpoints } = await look(id)
    expect(health).toMatchObject({
      status: 'down',
      reason: `PostgreSQL is stopped: another program listens on port ${primary.direct.port}, which clients know; it starts as soon as the port is free`,
    })
    expect(endpoints.primary).toEqual(primary)
    fake.neverStarts = false
    await look(id)
    expect((await look(id)).health).toMatchObject({ status: 'ok' })
  })

  test('names the port that another program took while the pooler was down', async () => {
    const id = await ready()
    const { port } = (await show(id)).body.data.endpoints.primary.pooler
    fake.poolerNeverStarts = true
    fake.poolers.delete(id)
    fake.boundPorts.add(port)
    expect((await look(id)).health).toMatchObject({
      status: 'degraded',
      reason: `the pooler is stopped: another program listens on port ${port}, which clients know; it starts as soon as the port is free`,
    })
  })

  test('is degraded while the firewall rules for clusters are not in force', async () => {
    const id = await ready()
    fake.firewallProblem = 'the firewall rules are not in force: nft: Operation not supported'
    await platform.sql('update cluster set quota_checked_at = null')
    expect((await look(id)).health).toMatchObject({ status: 'degraded', reason: fake.firewallProblem })
    fake.firewallProblem = undefined
    expect((await look(id)).health).toMatchObject({ status: 'ok', reason: '' })
  })

  test('is degraded while the pooler is down', async () => {
    const id = await ready()
    fake.poolerNeverStarts = true
    fake.poolers.delete(id)
    const degraded = (await look(id)).health
    expect(degraded).toMatchObject({ status: 'degraded', reason: 'the pooler is stopped' })
    expect((await look(id)).health).toEqual(degraded)
    fake.poolerNeverStarts = false
    expect((await look(id)).health).toMatchObject({ status: 'ok', reason: '' })
  })

  test('is degraded while an endpoint does not answer', async () => {
    const id = await ready()
    await look(id)
    fake.probeProblem = 'query 127.0.0.1:15000'
    const degraded = (await look(id, { closely: true })).health
    expect(degraded).toMatchObject({ status: 'degraded', reason: 'query 127.0.0.1:15000' })
    // The disk is checked every minute; between two checks the health does not improve by itself.
    expect((await look(id)).health).toEqual(degraded)
    expect((await look(id)).health).toEqual(degraded)
    fake.probeProblem = undefined
    expect((await look(id)).health).toMatchObject({ status: 'ok', reason: '' })
  })

  test('shows the error if the server cannot be started', async () => {
    const id = await ready()
    await look(id)
    fake.startProblem = 'the certificate cannot be written'
    const degraded = (await look(id)).health
    expect(degraded).toMatchObject({ status: 'degraded', reason: 'the certificate cannot be written' })
    fake.kill(id)
    expect((await look(id)).health).toMatchObject({
      status: 'down',
      reason: 'PostgreSQL is stopped: the certificate cannot be written',
    })
    fake.startProblem = undefined
    await look(id)
    expect((await look(id)).health).toMatchObject({ status: 'ok', reason: '' })
  })

  test('is ok if the tenant has changed the password, because a rejected login is an answer', async () => {
    const id = await ready()
    fake.probeProblem = 'query 127.0.0.1:15000: password authentication failed for user "fly-user"'
    expect((await look(id, { closely: true })).health).toMatchObject({ status: 'ok', reason: '' })
  })

  test('is checked every second while there is a problem, and every ten seconds otherwise', async () => {
    const id = await ready()
    const delay = async () => {
      const [row] = await platform.sql(
        'select extract(epoch from run_at - now())::float8 as seconds from work where resource_id = $1',
        [id],
      )
      return row.seconds
    }
    await look(id)
    expect(await delay()).toBeGreaterThan(5)
    expect(await delay()).toBeLessThanOrEqual(10)
    fake.neverStarts = true
    fake.kill(id)
    await look(id)
    expect(await delay()).toBeLessThanOrEqual(1)
  })
})

describe('storage', () => {
  const gigabyte = 1024 ** 3
  const measured = (data: Record<string, unknown>) => [data.storage_provisioned_bytes, data.storage_used_bytes]

  test('is null before the first measurement, and then measured hourly', async () => {
    const id = await ready({ disk_size_gb: 2 })
    expect(measured((await show(id)).body.data)).toEqual([null, null])
    expect(measured(await look(id))).toEqual([2 * gigabyte, 40_000_000])
    fake.usedBytes = 50_000_000
    expect(measured(await look(id, { closely: true }))).toEqual([2 * gigabyte, 40_000_000])
    await platform.sql(`update cluster set storage_measured_at = now() - interval '61 minutes'`)
    expect(measured(await look(id, { closely: true }))).toEqual([2 * gigabyte, 50_000_000])
  })

  test('is not measured by a request', async () => {
    const id = await ready()
    await look(id)
    const { calls } = fake
    for (let i = 0; i < 5; i++) await show(id)
    await list('org_slug=personal')
    expect(fake.calls).toBe(calls)
  })

  test('that is nearly full makes the cluster read-only until there is space again', async () => {
    const id = await ready({ disk_size_gb: 1 })
    const at = async (share: number) => {
      fake.usedBytes = Math.ceil(share * gigabyte)
      return (await look(id, { closely: true })).health
    }
    expect(await at(0.949)).toMatchObject({ status: 'ok' })
    expect(fake.readOnly).toBe('off')
    const full = await at(0.951)
    expect(full).toMatchObject({ status: 'read_only', reason: expect.stringMatching(/1 GB is 95 % full/) })
    expect(fake.readOnly).toBe('on')
    expect((await look(id)).health).toEqual(full)
    expect(await at(0.901)).toMatchObject({ status: 'read_only', since: full.since })
    expect(fake.readOnly).toBe('on')
    expect(await at(0.899)).toMatchObject({ status: 'ok', reason: '' })
    expect(fake.readOnly).toBe('off')
    expect(await at(0.93)).toMatchObject({ status: 'ok' })
  })

  test('that is full is still reported after the server was down', async () => {
    const id = await ready({ disk_size_gb: 1 })
    fake.usedBytes = Math.ceil(0.96 * gigabyte)
    expect((await look(id)).health.status).toBe('read_only')
    fake.usedBytes = Math.ceil(0.92 * gigabyte)
    fake.neverStarts = true
    fake.kill(id)
    expect((await look(id)).health.status).toBe('down')
    fake.neverStarts = false
    await look(id)
    expect((await look(id)).health.status).toBe('read_only')
    expect(fake.readOnly).toBe('on')
  })
})

describe('when calls fail', () => {
  async function expectReady(id: string): Promise<void> {
    expect((await show(id)).body.data).toMatchObject({ status: 'ready' })
    expect(await eventsOf(id)).toEqual(['placed', 'ready'])
    expect(fake.created).toBe(1)
    expect([...fake.clusters.entries()]).toEqual([[id, { process: { is: 'ready', pid: 7 }, password: true }]])
    expect([...fake.poolers]).toEqual([id])
    expect(await platform.sql('select count(*) from cluster_port')).toEqual([{ count: 2 }])
  }

  async function expectDeleted(id: string): Promise<void> {
    expect(await platform.sql('select state from cluster')).toEqual([{ state: 'deleted' }])
    expect((await eventsOf(id)).slice(-2)).toEqual(['delete', 'gone'])
    await expectNothingLeft()
  }

  /** Counts the driver calls and statements of the change when nothing fails. */
  async function measure(change: () => Promise<unknown>): Promise<{ calls: number; statements: number }> {
    fake.breakCall(0)
    const counting = breakable(platform.database.db, 0)
    platform.loopDb = counting.db
    await change()
    platform.loopDb = undefined
    return { calls: fake.calls, statements: counting.count() }
  }

  test('creation converges to one cluster, whichever driver call fails', async () => {
    const extensions = ['citext']
    const { calls } = await measure(() => ready({ extensions }))
    expect(calls).toBeGreaterThan(10)
    for (let nth = 1; nth <= calls; nth++) {
      await startAfresh()
      const id = await created({ extensions })
      fake.breakCall(nth)
      await settle()
      await expectReady(id)
      expect(fake.extensions.get(id)).toEqual(extensions)
    }
  })

  test('creation converges, whichever statement and one driver call fail', async () => {
    const { calls, statements } = await measure(ready)
    for (let nth = 1; nth <= statements; nth++) {
      for (const broken of [0, 1 + (nth % calls)]) {
        await startAfresh()
        const id = await created()
        fake.breakCall(broken)
        platform.loopDb = breakable(platform.database.db, nth).db
        await settle()
        await expectReady(id)
      }
    }
  })

  test('deletion converges, whichever driver call or statement fails', async () => {
    const { calls, statements } = await measure(async () => {
      const id = await ready()
      fake.breakCall(0)
      platform.loopDb = breakable(platform.database.db, 0).db
      await remove(id)
      await settle()
    })
    expect(calls).toBeGreaterThanOrEqual(3)
    for (let nth = 1; nth <= statements; nth++) {
      for (const broken of [0, 1 + (nth % calls)]) {
        await startAfresh()
        const id = await ready()
        await remove(id)
        fake.breakCall(broken)
        platform.loopDb = breakable(platform.database.db, nth).db
        await settle()
        await expectDeleted(id)
      }
    }
  })

  test('a deletion at any call of the creation leaves nothing behind', async () => {
    const { calls } = await measure(ready)
    for (let nth = 1; nth <= calls; nth++) {
      await startAfresh()
      const id = await created()
      fake.onCall = async (call) => {
        if (call === nth) expect((await remove(id)).status).toBe(202)
      }
      await settle()
      await expectDeleted(id)
      expect(await eventsOf(id)).not.toContain('ready')
    }
  })

  test('the health of a cluster recovers, whichever driver call or statement of a check fails', async () => {
    let id = await ready()
    const { calls, statements } = await measure(() => look(id, { closely: true }))
    for (let nth = 1; nth <= Math.max(calls, statements); nth++) {
      await startAfresh()
      id = await ready()
      fake.breakCall(nth)
      platform.loopDb = breakable(platform.database.db, nth).db
      await lookOnce(id).catch(() => undefined)
      platform.loopDb = undefined
      fake.breakCall(0)
      expect((await look(id)).health.status).toBe('ok')
      expect(await eventsOf(id)).toEqual(['placed', 'ready'])
    }
  })
})

test.each([
  ['attachments', { app_name: 'web' }],
  ['backups', {}],
])('nothing is added to a cluster that is deleted at the same moment: %s', async (what, body) => {
  await platform.createApp('web')
  const id = await created()
  await platform.workUntil('cluster', 'ready')
  const asked: ReturnType<typeof platform.call>[] = []
  await platform.database.db.transaction(async (tx) => {
    await tx.query(`update cluster set state = 'deleting' where id = $1`, [id])
    asked.push(platform.call('POST', `/v1/postgres/${id}/${what}`, { body }))
    await untilOneWaits(platform)
  })
  expect(await asked[0]).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
})

describe('attachments', () => {
  const attach = (id: string, app_name: unknown, options: CallOptions = {}) =>
    platform.call('POST', `/v1/postgres/${id}/attachments`, { body: { app_name }, ...options })
  const detach = (id: string, app: string) => platform.call('DELETE', `/v1/postgres/${id}/attachments/${app}`)
  const attached = async (id: string) => (await show(id)).body.data.attached_apps

  test('answer 201 when new, and 200 with the original time when repeated', async () => {
    const id = await created()
    await platform.createApp('web')
    const first = await attach(id, 'web')
    expect(first.status).toBe(201)
    expect(first.body).toEqual({
      data: { postgres_cluster_id: id, app_name: 'web', attached_at: expect.stringMatching(/\.\d{6}Z$/) },
    })
    const second = await attach(id, 'web')
    expect(second).toMatchObject({ status: 200, body: first.body })
    expect(await attached(id)).toEqual([{ name: 'web' }])
  })

  test('twenty concurrent requests attach once', async () => {
    const id = await created()
    await platform.createApp('web')
    const replies = await Promise.all(Array.from({ length: 20 }, () => attach(id, 'web')))
    expect(replies.map((reply) => reply.status).sort()).toEqual([...Array(19).fill(200), 201])
  })

  test('are listed by name, in the details and in the list of clusters', async () => {
    const id = await ready()
    for (const app of ['web', 'api', 'jobs']) {
      await platform.createApp(app)
      await attach(id, app)
    }
    expect(await attached(id)).toEqual([{ name: 'api' }, { name: 'jobs' }, { name: 'web' }])
    expect((await list('org_slug=personal')).body.data[0].attached_apps).toEqual(await attached(id))
  })

  test('of a missing, deleted or foreign app answer 404', async () => {
    await platform.createOrg('acme')
    await platform.createApp('theirs', { org_slug: 'acme' })
    await platform.createApp('gone')
    await platform.call('DELETE', '/v1/apps/gone')
    const id = await created()
    for (const app of ['nothing', 'gone', 'theirs', 'UPPER', 'a\u0000b', '']) {
      expect(await attach(id, app), app).toMatchObject({ status: 404, body: { error: 'App not found' } })
    }
    expect(await attached(id)).toEqual([])
  })

  test('require the name of an app', async () => {
    const id = await created()
    for (const app_name of [undefined, 5, null]) {
      expect(await attach(id, app_name)).toMatchObject({
        status: 422,
        body: { error: expect.stringContaining('app_name') },
      })
    }
  })

  test('end with a detachment, which answers 404 without an attachment', async () => {
    const id = await created()
    await platform.createApp('web')
    await attach(id, 'web')
    expect(await detach(id, 'web')).toMatchObject({ status: 204, body: '' })
    expect(await attached(id)).toEqual([])
    for (const app of ['web', 'nothing', '%00', 'UPPER']) expect((await detach(id, app)).status).toBe(404)
    expect((await attach(id, 'web')).status).toBe(201)
  })

  describe('with a secret', () => {
    const url = { name: 'DATABASE_URL', value: 'postgresql://here' }
    const attachWith = (id: string, secret: unknown) =>
      platform.call('POST', `/v1/postgres/${id}/attachments`, { body: { app_name: 'web', secret } })
    const secrets = async () => {
      const { body } = await platform.call('GET', '/v1/apps/web/secrets?show_secrets=true')
      return body.secrets.map(({ name, value }: Record<string, string>) => `${name}=${value}`)
    }
    const version = async () => (await platform.sql(`select secrets_version from app where name = 'web'`))[0]

    test('set it, remove it when they end, and can be repeated', async () => {
      const id = await created()
      await platform.createApp('web')
      await platform.call('POST', '/v1/apps/web/secrets', { body: { values: { OTHER: url.value } } })
      for (let i = 0; i < 2; i++) {
        expect((await attachWith(id, url)).status).toBe(201)
        expect((await attachWith(id, { ...url, name: 'DIRECT_URL' })).status).toBe(200)
        expect(await secrets()).toEqual([
          'DATABASE_URL=postgresql://here',
          'DIRECT_URL=postgresql://here',
          'OTHER=postgresql://here',
        ])
        const before = await version()
        expect((await detach(id, 'web')).status).toBe(204)
        expect(await secrets()).toEqual(['OTHER=postgresql://here'])
        expect(await version()).not.toEqual(before)
      }
    })

    test('keep a secret that was changed since', async () => {
      const id = await created()
      await platform.createApp('web')
      await attachWith(id, url)
      await platform.call('POST', '/v1/apps/web/secrets', { body: { values: { DATABASE_URL: 'elsewhere' } } })
      expect((await detach(id, 'web')).status).toBe(204)
      expect(await secrets()).toEqual(['DATABASE_URL=elsewhere'])
    })

    test('are created completely or not at all', async () => {
      const id = await created()
      await platform.createApp('web')
      for (const secret of [
        { ...url, name: '1' },
        { ...url, value: 'a\u0000b' },
      ]) {
        expect((await attachWith(id, secret)).status).toBe(400)
      }
      for (const secret of [{ name: 'A' }, 'A', { ...url, value: 5 }]) {
        expect((await attachWith(id, secret)).status).toBe(422)
      }
      expect([await attached(id), await secrets()]).toEqual([[], []])
    })

    test('twenty concurrent ones do not deadlock', async () => {
      const id = await created()
      await platform.createApp('web')
      const replies = await Promise.all(Array.from({ length: 20 }, () => attachWith(id, url)))
      expect(replies.map((reply) => reply.status).sort()).toEqual([...Array(19).fill(200), 201])
    })
  })

  test('end with the app, and do not apply to a new app of the same name', async () => {
    const id = await ready()
    await platform.createApp('web')
    await attach(id, 'web')
    await platform.call('DELETE', '/v1/apps/web')
    expect(await attached(id)).toEqual([])
    await settle()
    await platform.sql('update work set run_at = now()')
    await platform.turn()
    await platform.createApp('web')
    expect(await attached(id)).toEqual([])
    expect((await detach(id, 'web')).status).toBe(404)
    expect((await attach(id, 'web')).status).toBe(201)
  })

  test('end with the cluster, while the app continues', async () => {
    const id = await ready()
    await platform.createApp('web')
    await attach(id, 'web')
    await remove(id)
    await settle()
    await expectNothingLeft()
    expect((await platform.call('GET', '/v1/apps/web')).status).toBe(200)
    expect((await attach(id, 'web')).status).toBe(404)
    expect((await list('org_slug=personal&include_deleted=true')).body.data[0].attached_apps).toEqual([])
  })
})
