import { describe, expect, test } from 'vitest'
import { insertMachineRow } from '../../support/machine.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { createApp } = platform

async function addMachine(appName: string, id: string, state: string) {
  const [app] = await platform.sql(`select id from app where name = $1 and state = 'active'`, [appName])
  await platform.sql(insertMachineRow, [id, app?.id, state])
}

async function addVolumes(appName: string, count: number) {
  await platform.sql(
    `insert into volume (id, app_id, name, region, size_gb, state, snapshot_retention, auto_backup)
     select 'vol_' || n || id, id, 'data', 'local', 1, 'created', 5, false from app, generate_series(1, $2) n
     where name = $1`,
    [appName, count],
  )
}

describe('creating an app', () => {
  test('returns 201 with its id and the time in milliseconds', async () => {
    const before = Date.now()
    const made = await createApp('my-app')
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      id: expect.stringMatching(/^[a-z0-9]{16}$/),
      created_at: expect.any(Number),
      name: 'my-app',
      status: 'pending',
      network: 'default',
      organization: { name: 'Personal', slug: 'personal', internal_numeric_id: expect.any(Number) },
      internal_numeric_id: expect.any(Number),
    })
    expect(made.body.created_at).toBeGreaterThanOrEqual(before - 1000)
    expect(made.body.created_at).toBeLessThanOrEqual(Date.now() + 1000)
  })

  test('accepts the alias `name`, an empty network, subdomains and unknown fields', async () => {
    const body = { name: 'spelt', org_slug: 'personal', network: '', enable_subdomains: true, app_role_id: '' }
    const made = await platform.call('POST', '/v1/apps?wait=true', { body })
    expect(made).toMatchObject({ status: 201, body: { name: 'spelt', network: 'default' } })
    expect(await platform.sql('select enable_subdomains from app')).toEqual([{ enable_subdomains: true }])
  })

  test('puts the app into the given network', async () => {
    expect((await createApp('seg', { network: 'Island-1' })).body.network).toBe('Island-1')
    expect((await platform.call('GET', '/v1/apps/seg')).body.network).toBe('Island-1')
  })

  describe('on a host without private networks', () => {
    const plain = usePlatform({ settings: { privateNetworkGap: 'IPv6 is switched off' } })

    test('rejects a custom network', async () => {
      const body = { app_name: 'seg', org_slug: 'personal' }
      const made = await plain.call('POST', '/v1/apps', { body: { ...body, network: 'island' } })
      expect(made).toMatchObject({ status: 422, body: { error: expect.stringContaining('IPv6 is switched off') } })
      expect(await plain.call('POST', '/v1/apps', { body: { ...body, network: 'default' } })).toMatchObject({
        status: 201,
      })
    })
  })

  test.each(['1net', '-net', 'a b', 'ä', 'a_b', 'a'.repeat(64)])('rejects the network %j', async (network) => {
    const made = await createApp('seg', { network })
    expect(made).toMatchObject({ status: 422, body: { error: expect.stringContaining('network') } })
    expect(await platform.sql('select 1 from app')).toEqual([])
  })

  test.each(['', 'a'.repeat(64), 'Upper', 'a_b', '-a', 'a-', 'ä', 'a.b', 'a b', '../x', 'a\u0000b', '💥'])(
    'refuses the name %j',
    async (name) => {
      const made = await createApp(name)
      expect(made.status).toBe(422)
      if (name !== '') {
        expect(made.body.error).toBe(
          'Validation failed: Name under 63 chars using numbers, lowercase letters and dashes',
        )
      }
      expect(await platform.sql('select 1 from app')).toEqual([])
    },
  )

  test.each(['a', '0', 'a'.repeat(63), 'a--b', '123'])('accepts the name %j', async (name) => {
    expect((await createApp(name)).status).toBe(201)
  })

  test.each([
    [{ org_slug: 'personal' }, 'app_name'],
    [{ app_name: 'x' }, 'org_slug'],
    [{}, 'app_name'],
    [{ app_name: 5, org_slug: 'personal' }, 'app_name'],
    [{ app_name: 'x', org_slug: ['personal'] }, 'org_slug'],
    [{ app_name: 'x', org_slug: 'personal', network: 1 }, 'network'],
    [{ app_name: 'x', org_slug: 'personal', enable_subdomains: 'true' }, 'enable_subdomains'],
    [{ app_name: null, org_slug: 'personal' }, 'app_name'],
  ])('names the invalid field in %j', async (body, field) => {
    const made = await platform.call('POST', '/v1/apps', { body })
    expect(made.status).toBe(422)
    expect(made.body.error).toContain(field)
    expect(await platform.sql('select 1 from app')).toEqual([])
  })

  test('in an unknown or foreign organization returns 404', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    for (const org_slug of ['nobody', 'personal', 'no/slug', 'a\u0000']) {
      const made = await platform.call('POST', '/v1/apps', { token, body: { app_name: 'x', org_slug } })
      expect(made).toMatchObject({ status: 404, body: { error: 'organization not found' } })
    }
  })

  test('with a name that any organization has taken returns 422 name_taken', async () => {
    await platform.createOrg('acme')
    await createApp('taken')
    for (const org_slug of ['personal', 'acme']) {
      expect(await createApp('taken', { org_slug })).toMatchObject({
        status: 422,
        body: { error: 'Validation failed: Name has already been taken', status: 'name_taken' },
      })
    }
  })

  test('returns its own result to each of many concurrent requests', async () => {
    await platform.createOrg('other')
    const read = await platform.createToken('read', 'other')
    const own = await platform.createToken('org', 'other')
    const create = (name: string, org_slug: string, token?: string | null) =>
      platform.call('POST', '/v1/apps', { body: { app_name: name, org_slug }, ...(token !== undefined && { token }) })
    await createApp('taken')
    const replies = await Promise.all([
      ...Array.from({ length: 20 }, (_, i) => create(`many-${i}`, i % 2 ? 'personal' : 'other')),
      create('with-none', 'personal', null),
      create('with-bad', 'personal', 'berth_none'),
      create('taken', 'personal'),
      create('nowhere', 'absent'),
      create('foreign', 'personal', own),
      create('not-written', 'other', read),
      create('last', 'other', own),
    ])
    expect(replies.map(({ status }) => status)).toEqual([...Array(20).fill(201), 401, 401, 422, 404, 404, 403, 201])
    expect(replies.slice(0, 20).map(({ body }) => body.organization.slug)).toEqual(
      Array.from({ length: 20 }, (_, i) => (i % 2 ? 'personal' : 'other')),
    )
    const list = await platform.call('GET', '/v1/apps?org_slug=other')
    expect(list.body.total_apps).toBe(11)
    expect(list.body.apps).toHaveLength(11)
  })

  test('with one name in a hundred concurrent requests creates one app', async () => {
    const replies = await Promise.all(Array.from({ length: 100 }, () => createApp('race')))
    expect(replies.filter((reply) => reply.status === 201)).toHaveLength(1)
    expect(replies.filter((reply) => reply.status === 422 && reply.body.status === 'name_taken')).toHaveLength(99)
    expect(await platform.sql('select count(*) from app')).toEqual([{ count: 1 }])
  })
})

describe('getting an app', () => {
  test('returns the documented fields', async () => {
    const made = await createApp('shown')
    expect(await platform.call('GET', '/v1/apps/shown')).toMatchObject({
      status: 200,
      body: {
        id: made.body.id,
        name: 'shown',
        status: 'pending',
        organization: { name: 'Personal', slug: 'personal' },
        machine_count: 0,
        volume_count: 0,
        cname_target: 'shown.berth.localhost',
      },
    })
  })

  test.each(['nothing', '..%2f', 'UPPER', '%00', 'a%2Fb', 'a'.repeat(200)])('%s is not found', async (name) => {
    expect(await platform.call('GET', `/v1/apps/${name}`)).toMatchObject({
      status: 404,
      body: { error: 'app not found' },
    })
  })

  test('of another organization returns 403, so that 404 means that the name is free', async () => {
    await platform.createOrg('acme')
    await createApp('mine')
    const token = await platform.createToken('org', 'acme')
    expect(await platform.call('GET', '/v1/apps/mine', { token })).toMatchObject({
      status: 403,
      body: { error: 'unauthorized' },
    })
    expect((await platform.call('GET', '/v1/apps/free', { token })).status).toBe(404)
  })

  test.each([
    [[], 'pending', 0],
    [['started'], 'deployed', 1],
    [['stopped', 'created'], 'suspended', 2],
    [['stopped', 'started'], 'deployed', 2],
    [['destroyed'], 'pending', 0],
  ])('with machines %j is %s', async (states, status, machine_count) => {
    await createApp('counted')
    for (const [i, state] of states.entries()) await addMachine('counted', `m${i}`, state)
    await addVolumes('counted', 3)
    expect((await platform.call('GET', '/v1/apps/counted')).body).toMatchObject({
      status,
      machine_count,
      volume_count: 3,
    })
  })
})

describe('listing apps', () => {
  const list = (query: string, token?: string) =>
    platform.call('GET', `/v1/apps?${query}`, token === undefined ? {} : { token })

  test('is ordered by name and counts machines and volumes', async () => {
    for (const name of ['b', 'a-1', 'c', 'a']) await createApp(name)
    await addMachine('c', 'm1', 'started')
    await addVolumes('c', 2)
    const reply = await list('org_slug=personal')
    expect(reply.body.total_apps).toBe(4)
    expect(reply.body.apps.map((app: { name: string }) => app.name)).toEqual(['a', 'a-1', 'b', 'c'])
    expect(reply.body.apps[3]).toEqual({
      id: expect.any(String),
      name: 'c',
      machine_count: 1,
      volume_count: 2,
      network: 'default',
      status: 'deployed',
      organization: { name: 'Personal', slug: 'personal', internal_numeric_id: expect.any(Number) },
      internal_numeric_id: expect.any(Number),
    })
    expect(reply.body).not.toHaveProperty('next_cursor')
  })

  test('of an empty organization is an empty list', async () => {
    expect(await list('org_slug=personal')).toMatchObject({ status: 200, body: { total_apps: 0, apps: [] } })
  })

  test('by role is empty, because apps have no roles', async () => {
    await createApp('a')
    expect((await list('org_slug=personal&app_role=postgres_cluster')).body).toEqual({ total_apps: 0, apps: [] })
    expect((await list('org_slug=personal&app_role=')).body.total_apps).toBe(1)
    expect((await list('org_slug=none&app_role=x')).status).toBe(404)
  })

  test('returns every app once across pages, each with the total', async () => {
    const names = Array.from({ length: 25 }, (_, i) => `app-${String(i).padStart(2, '0')}`)
    for (const name of names) await createApp(name)
    const seen: string[] = []
    let cursor = ''
    do {
      const { body } = await list(`org_slug=personal&limit=7${cursor && `&cursor=${cursor}`}`)
      expect(body.total_apps).toBe(25)
      seen.push(...body.apps.map((app: { name: string }) => app.name))
      cursor = body.next_cursor ?? ''
    } while (cursor)
    expect(seen).toEqual(names)
  })

  test('returns no cursor when a page ends with the last app', async () => {
    for (const name of ['a', 'b']) await createApp(name)
    expect((await list('org_slug=personal&limit=2')).body).not.toHaveProperty('next_cursor')
  })

  test('returns only apps of the given organization', async () => {
    await platform.createOrg('acme')
    await createApp('ours', { org_slug: 'acme' })
    await createApp('theirs')
    expect((await list('org_slug=acme')).body).toMatchObject({ total_apps: 1, apps: [{ name: 'ours' }] })
  })

  test('of an organization that the token may not see returns 404', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('read', 'acme')
    expect((await list('org_slug=acme', token)).status).toBe(200)
    expect(await list('org_slug=personal', token)).toMatchObject({
      status: 404,
      body: { error: 'organization not found' },
    })
  })

  test.each([
    ['', 422, 'org_slug'],
    ['org_slug=', 422, 'org_slug'],
    ['org_slug=personal&org_slug=acme', 422, 'org_slug'],
    ['org_slug=personal&limit=0', 422, 'limit'],
    ['org_slug=personal&limit=1001', 422, 'limit'],
    ['org_slug=personal&limit=x', 422, 'limit'],
    ['org_slug=personal&limit=1.5', 422, 'limit'],
    ['org_slug=personal&limit=2&limit=3', 422, 'limit'],
    ['org_slug=personal&cursor=%00', 400, 'cursor'],
    ['org_slug=personal&cursor=Li4v', 400, 'cursor'],
    ['org_slug=%00', 404, 'organization'],
  ])('?%s returns %i and names the parameter', async (query, status, word) => {
    const reply = await list(query)
    expect(reply.status).toBe(status)
    expect(reply.body.error).toContain(word)
  })
})

describe('deleting an app', () => {
  const remove = (name: string, query = '') => platform.call('DELETE', `/v1/apps/${name}${query}`)

  test('returns 202 without a body; the app is gone and its name free immediately', async () => {
    await createApp('gone')
    expect(await remove('gone')).toMatchObject({ status: 202, body: '' })
    expect((await platform.call('GET', '/v1/apps/gone')).status).toBe(404)
    expect((await platform.call('GET', '/v1/apps?org_slug=personal')).body).toEqual({ total_apps: 0, apps: [] })
    expect((await createApp('gone')).status).toBe(201)
    expect((await remove('gone')).status).toBe(202)
    expect((await remove('gone')).status).toBe(404)
  })

  test('is rejected while machines run, names them, and changes nothing', async () => {
    await createApp('busy')
    const running = ['started', 'starting', 'suspended', 'stopping', 'replacing', 'restarting', 'suspending']
    for (const [i, state] of running.entries()) await addMachine('busy', `m${i}`, state)
    await addMachine('busy', 'm9', 'stopped')
    const refused = await remove('busy', '?force=false')
    expect(refused.status).toBe(422)
    expect(refused.body.error).toMatch(/m0, m1, m2, m3, m4, m5, m6;/)
    expect((await platform.call('GET', '/v1/apps/busy')).status).toBe(200)
    expect(await platform.sql('select 1 from event')).toEqual([])
  })

  test.each(['?force=true', '?force=1'])('with %s succeeds and deletes everything the app owned', async (query) => {
    await createApp('owner')
    await createApp('other')
    await addMachine('owner', 'm1', 'started')
    await addMachine('other', 'm2', 'started')
    await addVolumes('owner', 2)
    await addVolumes('other', 1)
    await platform.sql(
      `insert into secret (app_id, name, value, digest) select id, 'S' || n, '', '' from app, generate_series(1, 600) n`,
    )
    expect((await remove('owner', query)).status).toBe(202)
    expect((await platform.call('GET', '/v1/apps/owner')).status).toBe(404)
    await platform.work()
    expect(await platform.sql(`select state from app where name = 'owner'`)).toEqual([{ state: 'deleted' }])
    expect(await platform.sql('select id from machine')).toEqual([{ id: 'm2' }])
    expect(await platform.sql('select count(*) from volume')).toEqual([{ count: 1 }])
    expect(await platform.sql('select count(*) from secret')).toEqual([{ count: 600 }])
    expect(await platform.sql('select 1 from work')).toEqual([])
    expect(
      (await platform.sql(`select event from event where kind = 'app' order by id`)).map((row) => row.event),
    ).toEqual(['delete', 'gone'])
  })

  test.each(['?force=yes', '?force=', '?force=TRUE', '?force=true&force=true'])('%s returns 400', async (query) => {
    await createApp('kept')
    const reply = await remove('kept', query)
    expect(reply.status).toBe(400)
    expect(reply.body.error).toContain('force')
    expect((await platform.call('GET', '/v1/apps/kept')).status).toBe(200)
  })

  test('in ten concurrent requests deletes once', async () => {
    await createApp('race')
    const replies = await Promise.all(Array.from({ length: 10 }, () => remove('race')))
    expect(replies.map((reply) => reply.status).sort()).toEqual([202, ...Array(9).fill(404)])
  })

  test('keeps the app count correct', async () => {
    await Promise.all(Array.from({ length: 30 }, (_, i) => createApp(`n${i}`)))
    await Promise.all(Array.from({ length: 20 }, (_, i) => remove(`n${i}`)))
    await platform.work()
    const { body } = await platform.call('GET', '/v1/apps?org_slug=personal')
    expect(body.total_apps).toBe(10)
    expect(body.apps).toHaveLength(10)
  })
})
