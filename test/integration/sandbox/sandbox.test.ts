import { beforeEach, describe, expect, test } from 'vitest'
import { sandboxRoutes } from '../../../src/api/routes.ts'
import { removeStrays } from '../../../src/reconcile/sandbox/stray.ts'
import { breakable } from '../../support/breakable.ts'
import { type CallOptions, usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { fake, callSandbox: call } = platform

const create = (name: unknown, extra: object = {}, options: CallOptions = {}) =>
  call('POST', '/v1/sandboxes', { body: { name, ...extra }, ...options })
const show = (name: string, options: CallOptions = {}) => call('GET', `/v1/sandboxes/${name}`, options)
const remove = (name: string, options: CallOptions = {}) => call('DELETE', `/v1/sandboxes/${name}`, options)
/** A restart is the simplest request that starts a sandbox. */
const run = (name: string) => call('POST', `/v1/sandboxes/${name}/restart`)
const slotOf = async (name: string) => (await platform.sql('select slot from sandbox where name = $1', [name]))[0]?.slot
const names = (reply: { body: { sprites: { name: string }[] } }) => reply.body.sprites.map((sprite) => sprite.name)

/** Runs the background loop until only checks of running sandboxes are left. */
async function settle(): Promise<void> {
  for (let turns = 0; turns < 100; turns++) {
    await platform.sql('update work set run_at = now(), leased_until = null')
    await platform.turn().catch(() => undefined)
    const [left] = await platform.sql(`select 1 from sandbox where state = 'deleting'`)
    const [failed] = await platform.sql('select 1 from work where last_error is not null or token is not null')
    if (!left && !failed) return
  }
  throw new Error('it does not settle')
}

describe('creating a sandbox', () => {
  test('responds 201 with all fields, cold and with its URL', async () => {
    const made = await create('first')
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      id: expect.stringMatching(/^[a-z0-9]{16}$/),
      name: 'first',
      organization: 'personal',
      org_slug: 'personal',
      status: 'cold',
      url: 'http://first.sandbox.localhost:4282/',
      url_settings: { auth: 'sprite', private_access: 'org_users' },
      config: { ram_mb: 2048, cpus: 2, region: 'local', storage_gb: 10 },
      storage: { limit_bytes: 10 * 1024 ** 3, enforced: false },
      environment: {},
      labels: [],
      primary_region: 'local',
      version: expect.any(String),
      environment_version: expect.any(String),
      isolation: { kind: 'bubblewrap', network: 'own' },
      created_at: expect.stringMatching(/Z$/),
      updated_at: expect.stringMatching(/Z$/),
    })
    expect(made.headers['sprite-version']).toMatch(/^0\.0\.1-rc\d+$/)
    expect(await show('first')).toMatchObject({ status: 200, body: made.body })
    expect(await platform.sql('select 1 from work')).toEqual([])
    expect(fake.boxesUp.size).toBe(0)
  })

  test('keeps every field it is given', async () => {
    const extra = {
      config: { ram_mb: 512, cpus: 0.5, region: 'fra', storage_gb: 3 },
      environment: { KEY: 'value', _x1: '' },
      labels: ['a', 'b', 'a'],
      url_settings: { auth: 'public', private_access: 'admins' },
    }
    const ignored = { wait_for_capacity: true, runtime: 'dev', unknown: 1 }
    expect(await create('full', { ...extra, ...ignored })).toMatchObject({
      status: 201,
      body: { ...extra, labels: ['a', 'b'] },
    })
  })

  test('accepts the field names of older clients and the alias of the path', async () => {
    const made = await call('POST', '/v1/sprites', { body: { name: 'old', config: { ramMB: 128, storageGB: 2 } } })
    expect(made).toMatchObject({ status: 201, body: { config: { ram_mb: 128, storage_gb: 2, cpus: 2 } } })
    expect((await call('GET', '/v1/sprites/old')).body.name).toBe('old')
  })

  test('accepts a body with the content type of a form', async () => {
    const headers = { 'content-type': 'application/x-www-form-urlencoded' }
    expect((await call('POST', '/v1/sprites', { raw: '{"name":"curl"}', headers })).status).toBe(201)
  })

  test.each(['', '-a', 'a-', 'A', 'a_b', 'a.b', 'ä', 'a'.repeat(64), 'a\0', '../x', 7, null, ['a']])(
    'refuses the name %j',
    async (name) => {
      const made = await create(name)
      expect(made).toMatchObject({
        status: 400,
        body: { error: 'bad_request', message: expect.stringContaining('name') },
      })
      expect(await platform.sql('select 1 from sandbox')).toEqual([])
    },
  )

  test.each([
    [{ config: { ram_mb: 63 } }, 'ram_mb'],
    [{ config: { ram_mb: 1.5 } }, 'ram_mb'],
    [{ config: { ramMB: '512' } }, 'ramMB'],
    [{ config: { cpus: 0 } }, 'cpus'],
    [{ config: { cpus: 1e9 } }, 'cpus'],
    [{ config: { storage_gb: 0 } }, 'storage_gb'],
    [{ config: { region: 'NO' } }, 'region'],
    [{ config: 5 }, 'config'],
    [{ labels: 'a' }, 'labels'],
    [{ labels: [''] }, 'labels'],
    [{ environment: { 'a b': 'x' } }, 'environment'],
    [{ environment: { A: 1 } }, 'environment'],
    [{ environment: { A: 'x\0' } }, 'environment.A'],
    [{ url_settings: { auth: 'none' } }, 'url_settings.auth'],
    [{ url_settings: { private_access: 'all' } }, 'url_settings.private_access'],
    [{ runtime: 'other' }, 'runtime'],
    [{ org_slug: 'No Slug' }, 'org_slug'],
  ])('refuses %j, naming the field', async (extra, field) => {
    expect(await create('bad', extra)).toMatchObject({
      status: 400,
      body: { error: 'bad_request', message: expect.stringContaining(field) },
    })
    expect(await platform.sql('select 1 from sandbox')).toEqual([])
  })

  test('refuses too many labels and too much environment', async () => {
    expect((await create('bad', { labels: Array(65).fill('x') })).status).toBe(400)
    expect((await create('bad', { environment: { A: 'x'.repeat(70_000) } })).status).toBe(400)
  })

  test('requires a name', async () => {
    expect(await call('POST', '/v1/sprites', { body: {} })).toMatchObject({
      status: 400,
      body: { error: 'bad_request', message: 'name is required' },
    })
  })

  test('responds 409 for a taken name, also to another organization', async () => {
    await platform.createOrg('acme')
    await create('taken')
    const token = await platform.createToken('org', 'acme')
    for (const options of [{}, { token }]) {
      expect(await create('taken', {}, options)).toMatchObject({
        status: 409,
        body: { error: 'conflict', message: expect.any(String) },
      })
    }
  })

  test('creates one of a hundred simultaneous requests with the same name', async () => {
    const replies = await Promise.all(Array.from({ length: 100 }, () => create('race')))
    expect(replies.filter((reply) => reply.status === 201)).toHaveLength(1)
    expect(replies.filter((reply) => reply.status === 409)).toHaveLength(99)
  })

  test('assigns the lowest free slots, each once, also to simultaneous requests', async () => {
    const replies = await Promise.all(Array.from({ length: 60 }, (_, i) => create(`n${i}`)))
    expect(replies.every((reply) => reply.status === 201)).toBe(true)
    const slots = (await platform.sql('select slot from sandbox order by slot')).map((row) => row.slot)
    expect(slots).toEqual(Array.from({ length: 60 }, (_, i) => i + 1))
  })

  test('does not reuse the slot of a sandbox that is still being deleted', async () => {
    await create('old')
    await remove('old')
    await create('new')
    expect(await slotOf('new')).toBe(2)
    await settle()
    await create('newer')
    expect(await slotOf('newer')).toBe(1)
  })

  test('responds 429 with the fields that clients read when there is no slot left', async () => {
    await platform.setQuotas({ sandboxes: 'unlimited' })
    await platform.sql(`insert into sandbox (id, org_id, name, slot, url_auth, private_access, labels, environment,
        memory_mb, cpus, storage_gb, region)
      select 'id' || n, org.id, 'n' || n, n, 'sprite', 'admins', '{}', '{}', 1, 1, 1, 'local'
      from org, generate_series(1, 1023) n where slug = 'personal'`)
    const full = await create('more')
    expect(full).toMatchObject({
      status: 429,
      body: {
        error: 'concurrent_sprite_limit_exceeded',
        message: expect.any(String),
        limit: 1023,
        current_count: 1023,
        retry_after_seconds: expect.any(Number),
        window_seconds: expect.any(Number),
        upgrade_available: false,
        upgrade_url: '',
      },
    })
    expect(full.headers).toMatchObject({
      'retry-after': '5',
      'x-ratelimit-limit': '1023',
      'x-ratelimit-remaining': '0',
    })
    await platform.sql(`delete from sandbox where name = 'n77'`)
    expect((await create('more')).status).toBe(201)
    expect(await slotOf('more')).toBe(77)
  })

  test('uses the organization of the token, or the one that a root token names', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    expect((await create('a', {}, { token })).body.organization).toBe('acme')
    expect((await create('b', { org_slug: 'acme' })).body.organization).toBe('acme')
    expect((await create('c', { organization: 'acme' })).body.organization).toBe('acme')
    expect((await create('d', { org_slug: 'acme' }, { token })).status).toBe(201)
    for (const org_slug of ['personal', 'nobody']) {
      expect(await create('e', { org_slug }, { token })).toMatchObject({
        status: 404,
        body: { error: 'not_found', message: 'organization not found' },
      })
    }
  })

  test('responds the same to a repeated Idempotency-Key', async () => {
    const headers = { 'idempotency-key': 'k' }
    const [first, second] = [await create('once', {}, { headers }), await create('once', {}, { headers })]
    expect(second).toMatchObject({ status: 201, body: first.body })
  })
})

describe('listing sandboxes', () => {
  test('is sorted by name and complete, with the counts in both fields', async () => {
    for (const name of ['b', 'a', 'c']) await create(name)
    await run('c')
    const list = await call('GET', '/v1/sandboxes')
    expect(names(list)).toEqual(['a', 'b', 'c'])
    const counts = { running: 1, warm: 0, cold: 2, running_limit: 1023, warm_limit: 1023 }
    expect(list.body).toMatchObject({ has_more: false, next_continuation_token: null, ...counts, org: counts })
    expect(list.body.sprites[0]).toEqual((await show('a')).body)
  })

  test('pages through all sandboxes, at most fifty at a time', async () => {
    await Promise.all(Array.from({ length: 60 }, (_, i) => create(`n${String(i).padStart(2, '0')}`)))
    const seen: string[] = []
    let token = ''
    do {
      const page = await call('GET', `/v1/sprites?max_results=25${token && `&continuation_token=${token}`}`)
      seen.push(...names(page))
      expect(page.body.has_more).toBe(page.body.next_continuation_token !== null)
      token = page.body.next_continuation_token ?? ''
    } while (token)
    expect(seen).toHaveLength(60)
    expect(new Set(seen).size).toBe(60)
    for (const [max, length] of [
      [100, 50],
      [0, 1],
      [-5, 1],
      [1, 1],
    ]) {
      expect((await call('GET', `/v1/sprites?max_results=${max}`)).body.sprites).toHaveLength(length!)
    }
  })

  test('treats a prefix literally', async () => {
    for (const name of ['web-1', 'web-2', 'db', 'webs']) await create(name)
    expect(names(await call('GET', '/v1/sprites?prefix=web-'))).toEqual(['web-1', 'web-2'])
    expect(names(await call('GET', '/v1/sprites?prefix=web&max_results=2'))).toEqual(['web-1', 'web-2'])
    for (const prefix of ['%25', '_', 'web%25', 'WEB']) {
      expect(names(await call('GET', `/v1/sprites?prefix=${prefix}`))).toEqual([])
    }
  })

  test.each([
    ['max_results=x', 400],
    ['continuation_token=%21', 400],
    ['continuation_token=Li4v', 400],
    ['prefix=%00', 400],
    ['org_slug=nobody', 404],
    ['org_slug=%00', 404],
  ])('?%s responds %i', async (query, status) => {
    expect((await call('GET', `/v1/sprites?${query}`)).status).toBe(status)
  })

  test('shows each token its own sandboxes', async () => {
    await platform.createOrg('acme')
    const org = await platform.createToken('org', 'acme')
    const read = await platform.createToken('read', 'acme')
    await create('mine')
    await create('theirs', {}, { token: org })
    await create('theirs-too', {}, { token: org })
    const one = await platform.createToken('sandbox', 'acme', { sandbox: 'theirs' })
    expect(names(await call('GET', '/v1/sprites'))).toEqual(['mine', 'theirs', 'theirs-too'])
    expect(names(await call('GET', '/v1/sprites?org_slug=personal'))).toEqual(['mine'])
    for (const token of [org, read]) {
      const list = await call('GET', '/v1/sprites', { token })
      expect(names(list)).toEqual(['theirs', 'theirs-too'])
      expect(list.body).toMatchObject({ name: 'acme', cold: 2, org: { name: 'acme', cold: 2 } })
    }
    const own = await call('GET', '/v1/sprites', { token: one })
    expect(names(own)).toEqual(['theirs'])
    expect(own.body.cold).toBe(1)
    expect((await call('GET', '/v1/sprites?org_slug=personal', { token: org })).status).toBe(404)
  })
})

describe('watching sandboxes', () => {
  /** The lines that a watch has sent so far. */
  async function watch(query = '', token = platform.rootToken) {
    const { server } = platform.sandboxServer
    if (!server.listening) await platform.sandboxServer.listen({ host: '127.0.0.1', port: 0 })
    const { port } = server.address() as { port: number }
    const stop = new AbortController()
    const reply = await fetch(`http://127.0.0.1:${port}/v1/sprites${query}`, {
      headers: { authorization: `Bearer ${token}`, accept: 'application/x-ndjson' },
      signal: stop.signal,
    })
    expect(reply.headers.get('content-type')).toBe('application/x-ndjson')
    const events: { type?: string; name: string; status: string; org: { cold: number; running: number } }[] = []
    const ended = (async () => {
      let text = ''
      for await (const chunk of reply.body!.pipeThrough(new TextDecoderStream())) {
        const lines = (text + chunk).split('\n')
        text = lines.pop()!
        events.push(...lines.map((line) => JSON.parse(line)).filter(({ type }) => type !== 'heartbeat'))
      }
    })().catch(() => undefined)
    return {
      events,
      told: () => events.map(({ name, status }) => `${name} ${status}`),
      ended,
      stop: () => stop.abort(),
    }
  }

  test('sends all sandboxes, then each change once, with the counts', async () => {
    await create('old')
    const seen = await watch()
    await until(() => seen.events.length === 1)
    await create('new')
    await until(() => seen.events.length === 2)
    await run('new')
    await until(() => seen.events.length === 3)
    await call('PUT', '/v1/sprites/old', { body: { labels: ['x'] } })
    await until(() => seen.events.length === 4)
    await remove('old')
    await until(() => seen.events.length === 5)
    expect(seen.told()).toEqual(['old cold', 'new cold', 'new running', 'old cold', 'old deleted'])
    expect(seen.events.map(({ org }) => `${org.running} ${org.cold}`)).toEqual(['0 1', '0 2', '1 1', '1 1', '1 0'])
    expect(seen.events[2]).toMatchObject({ last_running_at: expect.any(String), timestamp: expect.any(String) })
    seen.stop()
    await seen.ended
  })

  test('respects the prefix and the token, and ends with the token', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const seen = await watch('?prefix=web', token)
    await create('web-of-others')
    await create('db', {}, { token })
    await create('web-1', {}, { token })
    await until(() => seen.events.length > 0)
    expect(seen.told()).toEqual(['web-1 cold'])
    await platform.sql(`update token set revoked_at = now() where org_id is not null`)
    await create('web-2', { org_slug: 'acme' })
    await seen.ended
    expect(seen.told()).toEqual(['web-1 cold'])
  })

  test('is refused for an organization that is not visible', async () => {
    const headers = { accept: 'application/x-ndjson' }
    expect((await call('GET', '/v1/sprites?org_slug=nobody', { headers })).status).toBe(404)
  })
})

describe('changing a sandbox', () => {
  const change = (body: object, options: CallOptions = {}) => call('PUT', '/v1/sandboxes/box', { body, ...options })
  beforeEach(() => create('box', { labels: ['a'], environment: { A: '1' } }))

  test('changes only the given fields, and returns all', async () => {
    const before = (await show('box')).body
    const changed = await change({ url_settings: { auth: 'public' } })
    expect(changed).toMatchObject({
      status: 200,
      body: { ...before, url_settings: { auth: 'public', private_access: 'org_users' }, updated_at: expect.anything() },
    })
    expect(changed.body.updated_at > before.updated_at).toBe(true)
    expect((await change({ labels: ['b', 'c'] })).body).toMatchObject({ labels: ['b', 'c'], environment: { A: '1' } })
    expect((await change({ clear_labels: true })).body.labels).toEqual([])
    expect((await change({ clear_labels: true, labels: ['d'] })).body.labels).toEqual(['d'])
    expect((await change({ environment: { B: '2' } })).body.environment).toEqual({ B: '2' })
    expect((await change({ config: { ram_mb: 256 } })).body.config).toMatchObject({ ram_mb: 256, cpus: 2 })
    expect((await change({})).status).toBe(200)
    expect((await show('box')).body.url_settings.auth).toBe('public')
  })

  test('is applied to a running box at once', async () => {
    await run('box')
    await change({ config: { ram_mb: 300 } })
    await settle()
    expect(fake.specs.get(await idOf('box'))?.limits.memoryMb).toBe(300)
  })

  test.each([
    [{ labels: 1 }, 'labels'],
    [{ clear_labels: 'yes' }, 'clear_labels'],
    [{ url_settings: { auth: 'x' } }, 'auth'],
    [{ config: { cpus: -1 } }, 'cpus'],
  ])('refuses %j', async (body, field) => {
    expect(await change(body)).toMatchObject({
      status: 400,
      body: { error: 'bad_request', message: expect.stringContaining(field) },
    })
  })
})

const idOf = async (name: string) => (await show(name)).body.id

describe('running', () => {
  test('a restart starts a cold one and ends everything in a running one', async () => {
    const { id } = (await create('box')).body
    expect(await run('box')).toMatchObject({
      status: 200,
      body: { sprite_name: 'box', machine_id: id, message: expect.any(String) },
    })
    expect(fake.boxesUp.get(id)).toBe(true)
    expect((await show('box')).body).toMatchObject({ status: 'running', last_running_at: expect.stringMatching(/Z$/) })
    const stopped = fake.stops
    await run('box')
    expect(fake.stops).toBe(stopped + 1)
    expect(fake.boxesUp.get(id)).toBe(true)
  })

  test('an upgrade leaves a cold one cold and restarts a running one', async () => {
    const { id } = (await create('box')).body
    const upgrade = () => call('POST', '/v1/sprites/box/upgrade', { body: {} })
    expect(await upgrade()).toMatchObject({ status: 200, body: { name: 'box', status: 'upgraded' } })
    expect(fake.boxesUp.has(id)).toBe(false)
    await run('box')
    await upgrade()
    expect(fake.boxesUp.get(id)).toBe(true)
  })

  test('requests wait during a restart, and the loop does not interfere', async () => {
    const { id } = (await create('box')).body
    await run('box')
    fake.boxesUp.delete(id)
    const other = Promise.withResolvers<void>()
    const change = fake.turns.take(`sandbox ${id}`, 1_000, () => other.promise)
    let isThere = false
    const restarted = run('box').finally(() => {
      isThere = true
    })
    await platform.sql('update work set run_at = now()')
    expect((await platform.turn())?.result).toBe('wait')
    expect([isThere, fake.boxesUp.has(id)]).toEqual([false, false])
    other.resolve()
    await change
    expect((await restarted).status).toBe(200)
    expect(await platform.sql('select held_until from sandbox')).toEqual([{ held_until: null }])
  })

  test('a restart does not bring a sandbox back that is deleted meanwhile', async () => {
    const { id } = (await create('box')).body
    await run('box')
    fake.onCall = async () => {
      if (fake.boxesUp.get(id) === false) expect((await remove('box')).status).toBe(204)
      if (fake.boxesUp.get(id) === false) fake.onCall = () => undefined
    }
    expect((await run('box')).status).toBe(404)
    fake.onCall = () => undefined
    expect(fake.boxesUp.get(id)).toBe(false)
    await settle()
    expect([...fake.boxesUp]).toEqual([])
  })

  test('one that cannot start says why, is refused, and runs when it can again', async () => {
    const { id } = (await create('box')).body
    await run('box')
    fake.bootProblem = 'its first process ends at once'
    expect(await run('box')).toMatchObject({
      status: 409,
      body: { error: 'sandbox_unusable', message: 'the sandbox cannot be started: its first process ends at once' },
    })
    expect((await show('box')).body).toMatchObject({ status: 'cold', problem: 'its first process ends at once' })
    expect((await call('GET', '/v1/sandboxes/box/check')).body).toMatchObject({
      status: 'unhealthy',
      reason: 'it cannot be started: its first process ends at once',
    })
    await platform.sql('update work set run_at = now()')
    expect((await platform.turn())?.result).toBe('wait')
    fake.bootProblem = undefined
    await platform.sql('update work set run_at = now()')
    await platform.turn()
    expect(fake.boxesUp.get(id)).toBe(true)
    expect((await show('box')).body.status).toBe('running')
    expect((await show('box')).body.problem).toBeUndefined()
  })

  test('what is left of boxes without a sandbox is removed, and no other', async () => {
    const [kept, deleted] = [(await create('kept')).body.id, (await create('deleted')).body.id]
    for (const name of ['kept', 'deleted']) await run(name)
    const [slot, reissued] = [await slotOf('deleted'), (await slotOf('kept')) as number]
    await remove('deleted')
    await settle()
    // As an earlier version left it, and one whose slot belongs to another sandbox by now.
    fake.boxesUp.set(deleted, true)
    fake.boxesUp.set('unknown', true)
    fake.specs.set('unknown', { ...fake.specs.get(kept)!, id: 'unknown' })
    const errors: unknown[] = []
    await removeStrays(fake.world(platform.database.db), (error) => errors.push(error))
    expect(errors).toEqual([])
    expect([...fake.boxesUp.keys()]).toEqual([kept])
    expect(Object.fromEntries(fake.removedStrays)).toEqual({ [deleted]: false, unknown: true })
    expect(fake.removedSlots).toEqual([slot])
    expect(fake.removedSlots).not.toContain(reissued)
    expect(await platform.sql('select slot from box_slot')).toEqual([{ slot: reissued }])
  })

  test('disk usage is measured periodically', async () => {
    await create('box', { config: { storage_gb: 1 } })
    await run('box')
    await settle()
    const measured = {
      limit_bytes: 1024 ** 3,
      enforced: false,
      used_bytes: 40_000_000,
      measured_at: expect.stringMatching(/Z$/),
    }
    expect((await show('box')).body.storage).toEqual(measured)
    fake.usedBytes = 50
    await settle()
    expect((await show('box')).body.storage).toEqual(measured)
    await platform.sql(`update sandbox set measured_at = now() - interval '1 hour'`)
    await settle()
    expect((await show('box')).body.storage).toMatchObject({ used_bytes: 50 })
  })

  test('the loop starts a box that is gone', async () => {
    const { id } = (await create('box')).body
    await run('box')
    fake.boxesUp.delete(id)
    await settle()
    expect(fake.boxesUp.get(id)).toBe(true)
  })

  test('a check reports the state without starting it', async () => {
    const { id } = (await create('box')).body
    const check = async () => (await call('GET', '/v1/sprites/box/check')).body
    expect(await check()).toEqual({
      sprite_name: 'box',
      sprite_id: id,
      status: 'hibernated',
      reason: expect.any(String),
      checked_at: expect.stringMatching(/Z$/),
      elapsed: expect.any(Number),
    })
    expect(fake.boxesUp.has(id)).toBe(false)
    await run('box')
    expect(await check()).toMatchObject({ status: 'healthy' })
    fake.boxesUp.set(id, false)
    expect(await check()).toMatchObject({ status: 'unhealthy', reason: expect.any(String) })
    fake.breakCall(1)
    expect(await check()).toMatchObject({ status: 'error', reason: expect.stringContaining('lost') })
  })

  test('the organization reports the number of running sandboxes', async () => {
    for (const name of ['a', 'b']) await create(name)
    await run('b')
    expect(await call('GET', '/v1/organization')).toMatchObject({
      status: 200,
      body: {
        organization: {
          slug: 'personal',
          sprites_enabled: true,
          active_sprites: ['b'],
          max_sprites: 100,
          active_sprite_limit: 100,
        },
      },
    })
    await platform.createOrg('acme')
    const token = await platform.createToken('read', 'acme')
    expect((await call('GET', '/v1/organization', { token })).body.organization).toMatchObject({
      slug: 'acme',
      active_sprites: [],
    })
    expect((await call('GET', '/v1/organization?org_slug=personal', { token })).status).toBe(404)
    expect((await call('GET', '/v1/organization?org_slug=acme')).body.organization.slug).toBe('acme')
  })
})

describe('deleting a sandbox', () => {
  test('responds 204; it is gone at once, its name is free, and the loop removes the rest', async () => {
    const { id } = (await create('gone')).body
    await run('gone')
    expect(await remove('gone')).toMatchObject({ status: 204, body: '' })
    expect(await show('gone')).toMatchObject({
      status: 404,
      body: { error: 'not_found', message: 'sandbox not found' },
    })
    expect((await remove('gone')).status).toBe(404)
    expect(names(await call('GET', '/v1/sprites'))).toEqual([])
    expect((await create('gone')).status).toBe(201)
    await settle()
    expect(fake.boxesUp.has(id)).toBe(false)
    expect(await platform.sql('select state, slot from sandbox where id = $1', [id])).toEqual([
      { state: 'deleted', slot: null },
    ])
    expect(await platform.sql('select 1 from work where resource_id = $1', [id])).toEqual([])
  })

  test('ten times at once deletes once', async () => {
    await create('race')
    const replies = await Promise.all(Array.from({ length: 10 }, () => remove('race')))
    expect(replies.map((reply) => reply.status).sort()).toEqual([204, ...Array(9).fill(404)])
  })
})

describe('when calls fail', () => {
  const startAfresh = async () => {
    platform.loopDb = undefined
    fake.reset()
    await platform.clear()
  }

  async function measure(change: () => Promise<unknown>): Promise<{ calls: number; statements: number }> {
    fake.breakCall(0)
    const counting = breakable(platform.database.db, 0)
    platform.loopDb = counting.db
    await change()
    platform.loopDb = undefined
    return { calls: fake.calls, statements: counting.count() }
  }

  test('a sandbox that should run does so in the end, whichever call or statement fails', async () => {
    const { id } = (await create('box')).body
    await run('box')
    fake.boxesUp.delete(id)
    const { calls, statements } = await measure(settle)
    for (let nth = 1; nth <= Math.max(calls, statements); nth++) {
      await startAfresh()
      const { id } = (await create('box')).body
      await run('box')
      fake.boxesUp.delete(id)
      fake.breakCall(nth)
      platform.loopDb = breakable(platform.database.db, nth).db
      await settle().catch(() => undefined)
      platform.loopDb = undefined
      await settle()
      expect(fake.boxesUp.get(id)).toBe(true)
    }
  })

  test('a deletion converges, whichever call or statement fails', async () => {
    await create('box')
    await run('box')
    await remove('box')
    const { calls, statements } = await measure(settle)
    for (let nth = 1; nth <= Math.max(calls, statements); nth++) {
      await startAfresh()
      await create('box')
      await run('box')
      await remove('box')
      fake.breakCall(nth)
      platform.loopDb = breakable(platform.database.db, nth).db
      await settle()
      expect(fake.boxesUp.size).toBe(0)
      expect(await platform.sql('select state, slot from sandbox')).toEqual([{ state: 'deleted', slot: null }])
      expect(await platform.sql('select 1 from work')).toEqual([])
    }
  })

  test('a box that does not start fails the request, and the loop retries', async () => {
    const { id } = (await create('box')).body
    fake.boxProblem = 'no more memory'
    expect((await run('box')).status).toBe(500)
    fake.boxProblem = undefined
    await settle()
    expect(fake.boxesUp.get(id)).toBe(true)
  })
})

describe('policies', () => {
  const at = (kind: string) => `/v1/sandboxes/box/policy/${kind}`
  beforeEach(() => create('box'))

  test('of the network are stored unchanged', async () => {
    expect((await call('GET', at('network'))).body).toEqual({ rules: [] })
    const rules = [
      { domain: 'example.com', action: 'allow' },
      { domain: '*.Example.com', action: 'deny' },
      { domain: '*', action: 'deny' },
      { include: 'defaults' },
    ]
    expect(await call('POST', at('network'), { body: { rules } })).toMatchObject({ status: 204, body: '' })
    expect((await call('GET', at('network'))).body.rules).toEqual(
      rules.map((rule) => (rule.domain ? { ...rule, domain: rule.domain.toLowerCase() } : rule)),
    )
    expect((await call('POST', at('network'), { body: { rules: [] } })).status).toBe(204)
    expect((await call('GET', at('network'))).body).toEqual({ rules: [] })
  })

  test.each([
    [{}, 'rules'],
    [{ rules: 'x' }, 'rules'],
    [{ rules: [], other: 1 }, 'other'],
    [{ rules: [{}] }, 'rules.0'],
    [{ rules: [{ domain: 'a.com' }] }, 'rules.0.action'],
    [{ rules: [{ include: 'defaults' }, { domain: 'a.com', action: 'maybe' }] }, 'rules.1.action'],
    [{ rules: [{ domain: 'a.com', action: 'allow', include: 'defaults' }] }, 'rules.0'],
    [{ rules: [{ include: 'all' }] }, 'rules.0.include'],
    [{ rules: [{ include: 'defaults', action: 'allow' }] }, 'rules.0'],
    [{ rules: [{ domain: 'a.com', action: 'allow', port: 1 }] }, 'rules.0.port'],
    [{ rules: [{ domain: '', action: 'allow' }] }, 'rules.0.domain'],
    [{ rules: [{ domain: 'a b', action: 'allow' }] }, 'rules.0.domain'],
    [{ rules: [{ domain: 'http://a.com', action: 'allow' }] }, 'rules.0.domain'],
    [{ rules: [{ domain: 'a.*.com', action: 'allow' }] }, 'rules.0.domain'],
  ])('of the network refuse %j', async (body, word) => {
    expect(await call('POST', at('network'), { body })).toMatchObject({
      status: 400,
      body: { error: 'bad_request', message: expect.stringContaining(word) },
    })
  })

  test('of the network have at most a thousand rules', async () => {
    const body = { rules: Array(1001).fill({ include: 'defaults' }) }
    expect((await call('POST', at('network'), { body })).status).toBe(400)
  })

  test('of privileges show what is in force, and refuse unsupported ones', async () => {
    const standard = { profile: 'standard', devices: [], noNewPrivileges: true }
    expect((await call('GET', at('privileges'))).body).toEqual(standard)
    const set = (body: object) => call('POST', at('privileges'), { body })
    expect((await set({ profile: 'minimal', devices: [], noNewPrivileges: false })).status).toBe(204)
    expect((await call('GET', at('privileges'))).body).toEqual({ ...standard, profile: 'minimal' })
    for (const body of [{ profile: 'privileged' }, { devices: ['/dev/kvm'] }, { profile: 'x' }, { more: 1 }]) {
      expect(await set(body)).toMatchObject({ status: 400, body: { error: 'bad_request' } })
    }
    expect((await call('DELETE', at('privileges'))).status).toBe(204)
    expect((await call('GET', at('privileges'))).body).toEqual(standard)
  })

  test('of resources apply to the box at once', async () => {
    const memory = async () => (await call('GET', at('resources'))).body.memory
    expect(await memory()).toEqual({ limit_mb: 2048, autoscale: false })
    await run('box')
    expect((await call('POST', at('resources'), { body: { memory: { limit_mb: 100 } } })).status).toBe(204)
    expect(await memory()).toEqual({ limit_mb: 100, autoscale: false })
    await settle()
    expect(fake.specs.get(await idOf('box'))?.limits.memoryMb).toBe(100)
    expect((await call('DELETE', at('resources'))).status).toBe(204)
    await settle()
    expect(fake.specs.get(await idOf('box'))?.limits.memoryMb).toBe(2048)
    for (const body of [{ memory: { limit_mb: 1 } }, { memory: { autoscale: true } }, { cpu: 1 }]) {
      expect((await call('POST', at('resources'), { body })).status).toBe(400)
    }
  })
})

const ownTags = ['Sandboxes', 'Policies', 'Checkpoints']
const named = sandboxRoutes.filter(({ tag, path }) => ownTags.includes(tag) && path.includes('{name}'))

describe.each(named)('$method $path', ({ method, path, scope, id }) => {
  const url = path.replace('{name}', 'box').replace(/\{\w+\}/, 'v1')
  const body = id === 'setNetworkPolicy' ? { rules: [] } : {}

  test('responds 404 to tokens of other organizations and 401 without a token', async () => {
    await platform.createOrg('acme')
    await create('box')
    await create('other')
    const foreign = await platform.createToken('org', 'acme')
    const one = await platform.createToken('sandbox', 'personal', { sandbox: 'other' })
    for (const token of [foreign, one]) {
      expect(await call(method, url, { token, body })).toMatchObject({
        status: 404,
        body: { error: 'not_found', message: 'sandbox not found' },
      })
    }
    expect(await call(method, url, { token: null, body })).toMatchObject({ status: 401 })
    expect(await call(method, url, { token: 'berth_wrong', body })).toMatchObject({ status: 401 })
    expect((await show('box')).body.status).toBe('cold')
  })

  test('respects read-only tokens', async () => {
    await create('box')
    const token = await platform.createToken('read', 'personal')
    const reply = await call(method, url, { token, body })
    if (scope === 'read') expect(reply.status).not.toBe(403)
    else expect(reply).toMatchObject({ status: 403, body: { error: 'forbidden', message: 'this token may only read' } })
  })
})

test('a token of one sandbox has full access to it and cannot create another', async () => {
  const token = await platform.createToken('sandbox', 'personal', { sandbox: 'mine' })
  expect(await create('mine', {}, { token })).toMatchObject({ status: 403, body: { error: 'forbidden' } })
  await create('mine')
  expect((await show('mine', { token })).status).toBe(200)
  expect((await call('POST', '/v1/sprites/mine/restart', { token })).status).toBe(200)
  expect((await remove('mine', { token })).status).toBe(204)
  expect((await platform.call('GET', '/v1/apps?org_slug=personal', { token })).status).toBe(401)
})

test('a read-only token cannot create a sandbox', async () => {
  const token = await platform.createToken('read', 'personal')
  expect(await create('box', {}, { token })).toMatchObject({ status: 403, body: { error: 'forbidden' } })
})
