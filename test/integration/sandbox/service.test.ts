import { beforeEach, describe, expect, test } from 'vitest'
import type { FakeService } from '../../support/fake/services.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const path = '/v1/sandboxes/box/services'

interface Event {
  type: string
  timestamp: number
  data?: string
  exit_code?: number
  message?: string
}

beforeEach(async () => {
  const made = await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'box' } })
  expect(made.status).toBe(201)
})

const call = platform.callSandbox
const put = (name: string, body: object, more: object = {}) =>
  call('PUT', `${path}/${name}?duration=1ms`, { body, ...more })
const act = (name: string, verb: string, query = 'duration=1ms') => call('POST', `${path}/${name}/${verb}?${query}`)
const eventsOf = (body: string): Event[] =>
  body
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
const types = (body: string) => eventsOf(body).map(({ type }) => type)

async function fakeOf(name: string) {
  const [{ id }] = await platform.sql(`select id from sandbox where name = 'box'`)
  return platform.fake.services.get(`${id}/${name}`)!
}

async function plan(name: string, life: NonNullable<FakeService['life']>) {
  const [{ id }] = await platform.sql(`select id from sandbox where name = 'box'`)
  platform.fake.services.set(`${id}/${name}`, { process: { is: 'absent' }, log: [], life })
}

describe('defining a service', () => {
  test('starts it and returns its definition', async () => {
    await plan('web', { lines: ['hello'] })
    const made = await put('web', { cmd: 'node', args: ['server.js'], http_port: 80 })
    expect(made.status).toBe(200)
    expect(made.headers['content-type']).toBe('application/x-ndjson')
    expect(types(made.body)).toEqual(['started', 'stdout', 'complete'])
    expect((await call('GET', `${path}/web`)).body).toEqual({
      name: 'web',
      cmd: 'node',
      args: ['server.js'],
      needs: [],
      http_port: 80,
      state: { name: 'web', status: 'running', pid: expect.any(Number), started_at: expect.any(String) },
    })
    await put('other', { cmd: 'true' })
    expect(Object.keys((await call('GET', `${path}/other`)).body)).toEqual(['name', 'cmd', 'args', 'needs', 'state'])
    expect((await call('GET', path)).body.map(({ name }: { name: string }) => name)).toEqual(['other', 'web'])
  })

  test.each([
    [{}, 'cmd is required'],
    [{ cmd: '' }, 'cmd must be the name or the path of a program'],
    [{ cmd: 5 }, 'cmd must be a string'],
    [{ cmd: 'a\0b' }, 'cmd must be the name or the path of a program'],
    [{ cmd: 'true', args: 'x' }, 'args must be an array'],
    [{ cmd: 'true', args: [1] }, 'args.0 must be a string'],
    [{ cmd: 'true', comand: 'x' }, 'comand is not a known field'],
    [{ cmd: 'true', http_port: 0 }, 'http_port must be from 1 to 65535'],
    [{ cmd: 'true', http_port: '80' }, 'http_port must be an integer'],
    [{ cmd: 'true', httpPort: 70_000 }, 'http_port must be from 1 to 65535'],
    [{ cmd: 'true', dir: 'relative' }, 'dir must be an absolute path'],
    [{ cmd: 'true', env: { 'A-B': 'x' } }, 'is not a valid variable name'],
    [{ cmd: 'true', env: { A: 1 } }, 'env.A must be a string'],
    [{ cmd: 'true', needs: ['nobody'] }, 'needs: there is no service nobody'],
    [{ cmd: 'true', needs: ['web'] }, 'service web cannot need itself'],
    [{ cmd: 'true', health: {} }, 'health must have one of http and command'],
    [{ cmd: 'true', health: { http: { path: '/' } } }, 'health.http.port is required'],
    [{ cmd: 'true', health: { command: ['true'], every: '1s' } }, 'health.every is not a known field'],
    [{ cmd: 'true', health: { command: ['true'], interval: 'often' } }, 'health.interval must be a duration'],
  ])('refuses %j', async (body, message) => {
    expect(await put('web', body)).toMatchObject({
      status: 400,
      body: { error: 'bad_request', message: expect.stringContaining(message) },
    })
    expect(await platform.sql('select 1 from service')).toEqual([])
  })

  test.each(['-a', 'a~b', 'a%20b', 'a'.repeat(64), 'a%00b'])('refuses the name %s', async (name) => {
    expect((await put(name, { cmd: 'true' })).status).toBe(400)
  })

  test('reveals nothing without a token', async () => {
    expect((await put('-a', { cmd: 'true' }, { token: 'berth_x' })).status).toBe(401)
    expect((await put('web', { cmd: 'true', health: {} }, { token: 'berth_x' })).status).toBe(401)
  })

  test('refuses dependency cycles and a second HTTP port', async () => {
    await put('a', { cmd: 'true', http_port: 80 })
    await put('b', { cmd: 'true', needs: ['a'] })
    expect(await put('a', { cmd: 'true', needs: ['b'] })).toMatchObject({ status: 400 })
    expect(await put('c', { cmd: 'true', httpPort: 81 })).toMatchObject({
      status: 409,
      body: { error: 'conflict', message: 'another service already has an HTTP port configured' },
    })
    expect((await put('a', { cmd: 'true' })).status).toBe(200)
    expect((await put('c', { cmd: 'true', httpPort: 81 })).status).toBe(200)
  })

  test('changes nothing when it is repeated, also with null for absent fields', async () => {
    await put('web', { cmd: 'true', env: { A: '1', B: '2' } })
    const { process } = await fakeOf('web')
    const again = await put('web', { cmd: 'true', env: { B: '2', A: '1' }, args: null, needs: null, http_port: null })
    expect(eventsOf(again.body)).toEqual([
      {
        message:
          'Service already running with that command, use POST /v1/sandboxes/box/services/web/restart to restart it',
      },
    ])
    expect((await fakeOf('web')).process).toBe(process)
    expect(types((await put('web', { cmd: 'false' })).body)).toEqual(['started', 'complete'])
    expect((await fakeOf('web')).process).not.toBe(process)
  })

  test('reports why it cannot be started', async () => {
    await plan('web', { code: 127, problem: 'exec: "x": not found' })
    const told = eventsOf((await call('PUT', `${path}/web?duration=2s`, { body: { cmd: 'x' } })).body)
    expect(told).toMatchObject([{ type: 'error', data: 'exec: "x": not found' }, { type: 'exit', exit_code: 127 }, {}])
    expect((await call('GET', `${path}/web`)).body.state).toMatchObject({ status: 'failed', restart_count: 1 })
  })

  test('reports the exit of a service that was restarted before the first poll', async () => {
    await plan('web', { lines: ['hello'], code: 3, isBack: true })
    const told = eventsOf((await call('PUT', `${path}/web?duration=60s`, { body: { cmd: 'x' } })).body)
    expect(told.map(({ type }) => type)).toEqual(['started', 'stdout', 'exit', 'complete'])
    expect(told[2]).toMatchObject({ exit_code: 3 })
    expect((await call('GET', `${path}/web`)).body.state).toMatchObject({ status: 'running' })
  })

  test('streams output for the duration, under both of its names', async () => {
    for (const name of ['duration', 'timeout']) {
      const told = eventsOf((await call('PUT', `${path}/web?${name}=10ms`, { body: { cmd: name } })).body)
      expect(told.at(-1)!.timestamp - told[0]!.timestamp).toBeLessThan(4_000) // less than the default of 5 s
    }
  })

  test('falls back to the default for an invalid duration', async () => {
    for (const duration of ['0', '-1s', 'soon', '']) {
      await plan('web', { code: 0 })
      expect((await call('PUT', `${path}/web?duration=${duration}`, { body: { cmd: `x${duration}` } })).status).toBe(
        200,
      )
    }
  })
})

describe('a missing service', () => {
  test.each([
    ['GET', `${path}/x`],
    ['DELETE', `${path}/x`],
    ['GET', `${path}/x/logs`],
    ['POST', `${path}/x/start`],
    ['POST', `${path}/x/stop`],
    ['POST', `${path}/x/restart`],
  ] as const)('%s %s responds 404', async (method, url) => {
    expect(await call(method, url)).toMatchObject({
      status: 404,
      body: { error: 'not_found', message: 'service not found' },
    })
    expect(await call(method, url.replace('/box/', '/nobox/'))).toMatchObject({
      status: 404,
      body: { error: 'not_found', message: 'sandbox not found' },
    })
  })

  test('is also reported to other organizations, and read-only tokens change nothing', async () => {
    await put('web', { cmd: 'true' })
    await platform.createOrg('others')
    const stranger = await platform.createToken('org', 'others')
    const reader = await platform.createToken('read', 'personal')
    for (const [method, url] of [
      ['GET', `${path}/web`],
      ['GET', path],
      ['GET', `${path}/web/logs`],
      ['PUT', `${path}/web`],
      ['DELETE', `${path}/web`],
      ['POST', `${path}/web/start`],
      ['POST', `${path}/web/stop`],
      ['POST', `${path}/web/restart`],
      ['POST', `${path}/signal`],
    ] as const) {
      const body = url.endsWith('signal') ? { name: 'web', signal: 'TERM' } : { cmd: 'true' }
      const options = method === 'GET' ? {} : { body }
      expect((await call(method, url, { ...options, token: null })).status).toBe(401)
      expect((await call(method, url, { ...options, token: 'berth_x' })).status).toBe(401)
      expect((await call(method, url, { ...options, token: stranger })).status).toBe(404)
      expect((await call(method, url, { ...options, token: reader })).status).toBe(method === 'GET' ? 200 : 403)
    }
  })

  test('names with control bytes are not sent to the database', async () => {
    expect((await call('GET', `${path}/a%00b`)).status).toBe(404)
    expect((await call('GET', '/v1/sandboxes/a%00b/services/web')).status).toBe(404)
  })
})

describe('starting and stopping', () => {
  test('a stopped service stays stopped until it is started', async () => {
    await put('web', { cmd: 'true' })
    expect(types((await act('web', 'stop')).body)).toEqual(['stopping', 'stopped', 'complete'])
    expect(await platform.sql('select wanted from service')).toEqual([{ wanted: false }])
    expect((await call('GET', `${path}/web`)).body.state).toEqual({ name: 'web', status: 'stopped', exit_code: 143 })
    expect(await act('web', 'stop')).toMatchObject({ status: 409, body: { error: 'conflict' } })
    expect(types((await act('web', 'start')).body)).toEqual(['started', 'complete'])
    expect(types((await act('web', 'restart')).body)).toEqual(['stopping', 'stopped', 'started', 'complete'])
    expect(await platform.sql('select wanted from service')).toEqual([{ wanted: true }])
  })

  test('a service that is starting is not started again', async () => {
    await put('web', { cmd: 'true' })
    const fake = await fakeOf('web')
    fake.process = { ...fake.process, ready: false } as never
    expect(await act('web', 'start')).toMatchObject({
      status: 409,
      body: { message: 'service web is already starting' },
    })
  })

  test('dependencies are started too, and can be neither stopped nor deleted', async () => {
    await put('db', { cmd: 'true' })
    await put('app', { cmd: 'true', needs: ['db'] })
    expect(await act('db', 'stop')).toMatchObject({
      status: 409,
      body: { message: 'service app is running and needs db' },
    })
    expect(await call('DELETE', `${path}/db`)).toMatchObject({ status: 409, body: { message: 'service app needs db' } })
    await act('app', 'stop')
    await act('db', 'stop')
    await act('app', 'start')
    expect((await call('GET', `${path}/db`)).body.state.status).toBe('running')
    expect((await call('DELETE', `${path}/app`)).status).toBe(204)
    expect((await call('DELETE', `${path}/db`)).status).toBe(204)
    expect(platform.fake.services.size).toBe(0)
  })

  test('what a service needs cannot be stopped while it fails, and is the reason why it waits', async () => {
    await plan('db', { code: 3 })
    await put('db', { cmd: 'false' })
    await put('app', { cmd: 'true', needs: ['db'] })
    const app = await fakeOf('app')
    app.process = { ...app.process, begunAtMs: undefined } as never
    expect((await call('GET', `${path}/app`)).body.state).toEqual({
      name: 'app',
      status: 'starting',
      error: 'it needs db, which has failed: exited with code 3',
    })
    expect((await call('GET', path)).body[0].state.error).toContain('it needs db')
    app.process = { is: 'absent' }
    expect(await act('db', 'stop')).toMatchObject({
      status: 409,
      body: { message: 'service app has not been stopped and needs db' },
    })
  })

  test('a request that another one has overtaken is told so', async () => {
    await put('web', { cmd: 'true' })
    const [{ id }] = await platform.sql(`select id from sandbox where name = 'box'`)
    const turn = Promise.withResolvers<void>()
    const first = platform.fake.turns.take(`service ${id}/web`, 1_000, () => turn.promise)
    const requests = [act('web', 'restart')]
    await until(async () => (await platform.sql('select 1 from service where revision = 2')).length === 1)
    requests.push(act('web', 'stop'))
    await until(async () => (await platform.sql('select 1 from service where not wanted')).length === 1)
    turn.resolve()
    await first
    const [restarted, stopped] = await Promise.all(requests)
    expect(eventsOf(restarted!.body)).toContainEqual(
      expect.objectContaining({ type: 'error', data: 'service web was stopped by another request' }),
    )
    expect(types(stopped!.body)).toEqual(['stopping', 'stopped', 'complete'])
    expect((await fakeOf('web')).process).toMatchObject({ is: 'down', wanted: false })
  })

  test('services whose dependencies change at the same time do not wait for each other', async () => {
    await put('web', { cmd: 'true' })
    await put('db', { cmd: 'true' })
    const [{ id }] = await platform.sql(`select id from sandbox where name = 'box'`)
    const ends = ['web', 'db'].map((name) => {
      const turn = Promise.withResolvers<void>()
      const taken = platform.fake.turns.take(`service ${id}/${name}`, 1_000, () => turn.promise)
      return () => {
        turn.resolve()
        return taken
      }
    })
    const needsOf = async (name: string) =>
      (await platform.sql('select definition from service where name = $1', [name]))[0].definition.needs
    const changes = [put('web', { cmd: 'true', needs: ['db'] })]
    await until(async () => (await needsOf('web')).length === 1)
    changes.push(put('web', { cmd: 'true' }))
    await until(async () => (await needsOf('web')).length === 0)
    changes.push(put('db', { cmd: 'true', needs: ['web'] }))
    await until(async () => (await needsOf('db')).length === 1)
    for (const end of ends) await end()
    expect((await Promise.all(changes)).map(({ status }) => status)).toEqual([200, 200, 200])
    expect((await call('GET', path)).body).toMatchObject([
      { name: 'db', needs: ['web'], state: { status: 'running' } },
      { name: 'web', needs: [], state: { status: 'running' } },
    ])
  })

  test('signals are given by name or number, and need a process', async () => {
    await put('web', { cmd: 'true' })
    const send = (body: object) => call('POST', `${path}/signal`, { body })
    expect((await send({ name: 'web', signal: 'sigterm' })).status).toBe(204)
    expect((await send({ name: 'web', signal: 15 })).status).toBe(204)
    expect(await send({ name: 'web', signal: 'NOPE' })).toMatchObject({ status: 400 })
    expect(await send({ name: 'web' })).toMatchObject({ status: 400, body: { message: 'signal is required' } })
    expect((await send({ name: 'other', signal: 15 })).status).toBe(404)
    await act('web', 'stop')
    expect((await send({ name: 'web', signal: 15 })).status).toBe(409)
  })
})

describe('the background loop', () => {
  test('restarts the failed service behind the URL when requests come in', async () => {
    await put('web', { cmd: 'true', http_port: 8080 })
    const web = await fakeOf('web')
    const failed = { wanted: true, end: { code: 3, problem: undefined }, restarts: 5, nextRestartAtMs: Date.now() }
    const look = async () => {
      await platform.sql('update work set run_at = now()')
      await platform.turn()
      return [web.process.is, ...(await platform.sql('select failure from service'))]
    }
    web.process = { is: 'ending', sinceMs: Date.now() + 60_000, ...failed }
    expect(await look()).toEqual(['ending', { failure: 'exited with code 3' }])
    web.process = { is: 'ending', sinceMs: 0, ...failed }
    expect(await look()).toEqual(['up', { failure: 'exited with code 3' }])
    expect(await look()).toEqual(['up', { failure: null }])
  })

  test('completes the starts, stops and deletions of a killed control plane', async () => {
    for (const name of ['start', 'stop', 'gone', 'never']) await put(name, { cmd: 'true' })
    await act('start', 'stop')
    await platform.sql(`update service set wanted = (name <> 'stop')`)
    await platform.sql(`delete from service where name = 'gone'`)
    const [start, never] = [await fakeOf('start'), await fakeOf('never')]
    start.process = { ...start.process, sinceMs: 0 } as never
    never.process = { is: 'absent' }
    await platform.sql('update work set run_at = now()')
    await platform.turn()
    const states = (await call('GET', path)).body.map(({ state }: { state: { name: string; status: string } }) => state)
    expect(states).toMatchObject([
      { name: 'never', status: 'running' },
      { name: 'start', status: 'running' },
      { name: 'stop', status: 'stopped' },
    ])
    expect(await fakeOf('gone')).toBeUndefined()
  })
})
