import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import pino from 'pino'
import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest'
import { boxPaths } from '../../../src/drivers/box/paths.ts'
import { openSandboxSockets, type SandboxSockets } from '../../../src/main/inside/sandbox.ts'
import { insideToken } from '../../../src/model/account/token.ts'
import { sandboxFeed } from '../../../src/store/sandbox/feed.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { callSandbox: call } = platform
const directory = mkdtempSync(`${tmpdir()}/berth-`)
const home = { path: directory, uidStart: 300_000 }
const feed = sandboxFeed(() => platform.database.config)
const agent = new Agent({ keepAlive: true })
let inside: SandboxSockets

beforeEach(async () => {
  inside = await start()
})

afterEach(() => inside.close())

afterAll(async () => {
  agent.destroy()
  await feed.close()
  rmSync(directory, { recursive: true, force: true })
})

async function start(): Promise<SandboxSockets> {
  await platform.sandboxServer.ready()
  const world = platform.fake.world(platform.database.db)
  const made = openSandboxSockets({ home, db: platform.database.db, log: pino({ level: 'silent' }), world }, feed)
  await made.start(platform.sandboxServer)
  return made
}

const socketOf = (id: string) => `${boxPaths(home, id).inside}/api.sock`

async function create(name: string): Promise<string> {
  return (await call('POST', '/v1/sandboxes', { body: { name } })).body.id
}

/** Creates and starts a sandbox and returns its id. */
async function open(name: string): Promise<string> {
  const id = await create(name)
  await call('POST', `/v1/sandboxes/${name}/restart`)
  await until(() => existsSync(socketOf(id)))
  return id
}

interface Heard {
  status: number
  body: ReturnType<typeof JSON.parse>
}

function ask(id: string, method: string, path: string, body?: object | string, headers = {}): Promise<Heard> {
  return new Promise((resolve, reject) => {
    const asked = request({ socketPath: socketOf(id), method, path, headers, agent }, (answer) => {
      let text = ''
      answer.on('data', (piece) => {
        text += piece
      })
      answer.on('end', () => {
        const isJson = answer.headers['content-type']?.startsWith('application/json')
        resolve({ status: answer.statusCode!, body: isJson && text ? JSON.parse(text) : text })
      })
    })
    asked.on('error', reject)
    asked.end(typeof body === 'object' ? JSON.stringify(body) : body)
  })
}

describe('the API inside a sandbox', () => {
  test('responds as outside, whatever token and host are sent', async () => {
    const id = await open('own')
    const outside = await call('GET', '/v1/sandboxes/own/services')
    for (const headers of [{}, { authorization: 'Bearer nothing' }, { host: 'elsewhere' }]) {
      expect(await ask(id, 'GET', '/v1/services', undefined, headers)).toEqual({ status: 200, body: outside.body })
    }
    expect(await ask(id, 'GET', '/v1/services/none')).toEqual({
      status: 404,
      body: { error: 'not_found', message: 'service not found' },
    })
    expect((await ask(id, 'PUT', '/v1/services/x', { cmd: 'x', what: 1 })).status).toBe(400)
    expect((await ask(id, 'GET', '/v1/checkpoints?includeAuto=true')).body).toEqual([])
    expect((await ask(id, 'PATCH', '/v1/services')).status).toBe(405)
    expect((await ask(id, 'POST', '/v1/tasks', 'x'.repeat(1024 * 1024 + 1))).status).toBe(413)
  })

  test.each([
    '/',
    '/v1',
    '/v1/sandboxes',
    '/v1/sandboxes/other',
    '/v1/sandboxes/own/services',
    '/v1/sprites',
    '/v1/exec',
    '/v1/fs/read?path=/etc/passwd',
    '/v1/policy/network',
    '/v1/organization',
    '/v1/servicesx',
    '/v1/services/../../sandboxes',
    '/v1/services/../../other/services',
    '/v1/services/%2e%2e/%2e%2e/other/services',
    '/v1//services',
    '/healthz',
    '/openapi.json',
    'http://sprite/v1/sandboxes',
  ])('responds 404 at %s', async (path) => {
    const id = await open('own')
    await create('other')
    expect(await ask(id, 'GET', path)).toMatchObject({ status: 404, body: { error: 'not_found' } })
  })

  test('responds at once to a restore', async () => {
    const id = await open('own')
    await platform.sql(
      `insert into checkpoint (sandbox_id, id, is_auto, comment, state) values ($1, 'v1', false, '', 'ready')`,
      [id],
    )
    for (const [index, query] of ['', '?wait=true', '?wait=true&wait=x'].entries()) {
      expect(await ask(id, 'POST', `/v1/checkpoints/v1/restore${query}`)).toEqual({
        status: 202,
        body: {
          type: 'info',
          data: `Restoring checkpoint v1. The previous state is kept as auto-${index + 1}`,
          time: expect.stringMatching(/Z$/),
        },
      })
      await platform.sql(`delete from checkpoint where is_auto`)
    }
    expect((await ask(id, 'POST', '/v1/checkpoints/v9/restore')).status).toBe(404)
  })

  test('has a socket for all users inside, in a directory that only its own uid can enter', async () => {
    const id = await open('own')
    const { inside: shown, directory: box } = boxPaths(home, id)
    expect(statSync(socketOf(id)).mode & 0o777).toBe(0o666)
    expect(statSync(shown)).toMatchObject({ uid: process.getuid!() })
    expect(statSync(shown).mode & 0o777).toBe(0o755)
    const door = statSync(`${box}/api`)
    expect(door.mode & 0o007).toBe(0)
    if (process.getuid!() === 0) expect(door).toMatchObject({ uid: 0, gid: home.uidStart + 65_536 })
  })

  test('limits the number of connections', async () => {
    const id = await open('own')
    const sockets: Socket[] = []
    let dropped = 0
    try {
      for (let i = 0; i < 80; i++) {
        const socket = connect(socketOf(id)).on('error', () => undefined)
        socket.once('close', () => dropped++)
        sockets.push(socket)
      }
      await until(() => dropped >= 16)
      expect(dropped).toBe(16)
      await until(async () => (await call('GET', '/v1/sandboxes/own/services')).status === 200)
    } finally {
      for (const socket of sockets) socket.destroy()
    }
  })
})

describe('the socket', () => {
  test('is opened before the box starts', async () => {
    // The notification about its creation closes the socket of a cold sandbox.
    const heard = new Set<string>()
    const unsubscribe = feed.subscribe((change) => change && heard.add(change.sandboxId))
    const id = await create('early')
    await until(() => heard.has(id))
    unsubscribe()
    expect(existsSync(socketOf(id))).toBe(false)
    const spec = { id, slot: 1, hostname: 'early', limits: { memoryMb: 1, cpus: 1, pids: 1 } }
    await inside.boxes.ensureBox(spec)
    expect((await ask(id, 'GET', '/v1/tasks')).body).toEqual({ tasks: [] })
  })

  test('is opened again by a restarted control plane', async () => {
    const id = await open('kept')
    const before = statSync(socketOf(id)).ino
    await inside.close()
    await expect(ask(id, 'GET', '/v1/tasks')).rejects.toThrow(/ECONNREFUSED|ECONNRESET|hang up/)
    inside = await start()
    expect(statSync(socketOf(id)).ino).not.toBe(before)
    expect((await ask(id, 'GET', '/v1/tasks')).status).toBe(200)
  })

  test('closes with the sandbox, and does not serve another of the same name', async () => {
    const id = await open('gone')
    await call('DELETE', '/v1/sandboxes/gone')
    await create('gone')
    await until(async () => (await ask(id, 'GET', '/v1/tasks').catch(() => undefined)) === undefined)
    await expect(ask(id, 'GET', '/v1/tasks')).rejects.toThrow()
  })
})

describe('the token of a sandbox', () => {
  const tokenOf = (id: string) => insideToken(platform.fake.encryptionKey, id)

  test('has the usual form, and cannot be listed or revoked', async () => {
    const id = await create('a')
    expect(tokenOf(id)).toMatch(/^berth_[A-Za-z0-9]{43}$/)
    expect((await call('GET', '/v1/sandboxes/a', { token: tokenOf(id) })).status).toBe(200)
    expect((await platform.call('GET', '/v1/tokens')).body).not.toMatchObject({ tokens: [{ id }] })
    expect(JSON.stringify((await platform.call('GET', '/v1/tokens')).body)).not.toContain(id)
    expect((await platform.call('DELETE', `/v1/tokens/${id}`)).status).toBe(404)
  })

  test('is valid for its own sandbox only, until that is deleted', async () => {
    const token = tokenOf(await create('a'))
    await create('b')
    expect((await call('GET', '/v1/sandboxes/b', { token })).status).toBe(404)
    const body = { name: 'once', expire: 60 }
    const headers = { 'idempotency-key': 'k' }
    expect((await call('POST', '/v1/sandboxes/a/tasks', { token, body, headers })).status).toBe(201)
    expect((await call('DELETE', '/v1/sandboxes/a')).status).toBe(204)
    await create('a')
    expect((await call('GET', '/v1/sandboxes/a', { token })).status).toBe(401)
  })
})

describe('tasks', () => {
  const at = '/v1/sandboxes/own/tasks'
  const names = async () => (await call('GET', at)).body.tasks.map(({ name }: { name: string }) => name)

  beforeEach(() => create('own'))

  test('are created, extended and deleted', async () => {
    const made = await call('POST', at, { body: { name: 'agent', expire: '30m' } })
    expect(made).toMatchObject({ status: 201, body: { name: 'agent' } })
    const { started_at, expires_at } = made.body
    expect(Date.parse(expires_at) - Date.parse(started_at)).toBe(1_800_000)
    expect((await call('POST', at, { body: { name: 'agent', expire: 5 } })).status).toBe(409)
    expect((await call('GET', `${at}/agent`)).body).toEqual(made.body)
    const longer = await call('PUT', `${at}/agent`, { body: { expire: '1h' } })
    expect(longer).toMatchObject({ status: 200, body: { name: 'agent', started_at } })
    expect(longer.body.expires_at > expires_at).toBe(true)
    expect((await call('PUT', at, { body: { name: 'build', expire: 60 } })).status).toBe(200)
    expect(await names()).toEqual(['agent', 'build'])
    expect((await call('DELETE', `${at}/agent`)).status).toBe(204)
    expect((await call('DELETE', `${at}/agent`)).status).toBe(404)
    expect((await call('GET', `${at}/agent`)).body).toEqual({ error: 'not_found', message: 'task not found' })
  })

  test('disappear when they expire', async () => {
    await call('POST', at, { body: { name: 'short', expire: '1s' } })
    await platform.sql(`update task set expires_at = now() - interval '1 second'`)
    expect(await names()).toEqual([])
    expect((await call('GET', `${at}/short`)).status).toBe(404)
    expect((await call('DELETE', `${at}/short`)).status).toBe(404)
    expect((await call('POST', at, { body: { name: 'short', expire: '1s' } })).status).toBe(201)
  })

  test.each([
    [{ name: 'x' }, 400],
    [{ expire: 5 }, 400],
    [{ name: 'x', expire: '2h' }, 400],
    [{ name: 'x', expire: 0 }, 400],
    [{ name: 'x', expire: true }, 400],
    [{ name: '../x', expire: 5 }, 400],
    [{ name: 'x'.repeat(101), expire: 5 }, 400],
  ])('are refused with %j', async (body, status) => {
    expect((await call('POST', at, { body })).status).toBe(status)
    expect((await call('PUT', at, { body })).status).toBe(status)
  })

  test('are limited to a hundred, and are deleted with their sandbox', async () => {
    for (let i = 0; i < 100; i++) await call('POST', at, { body: { name: `t${i}`, expire: 60 } })
    expect((await call('POST', at, { body: { name: 'one-more', expire: 60 } })).status).toBe(409)
    expect((await call('PUT', `${at}/one-more`, { body: { expire: 60 } })).status).toBe(409)
    expect((await call('PUT', `${at}/t1`, { body: { expire: 60 } })).status).toBe(200)
    await call('DELETE', '/v1/sandboxes/own')
    await platform.work()
    expect(await platform.sql('select 1 from task')).toEqual([])
  })

  test('other organizations and read tokens are rejected', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const read = await platform.createToken('read', 'personal')
    const body = { name: 'x', expire: 5 }
    for (const [method, path] of [
      ['GET', at],
      ['POST', at],
      ['PUT', at],
      ['GET', `${at}/x`],
      ['PUT', `${at}/x`],
      ['DELETE', `${at}/x`],
    ] as const) {
      expect((await call(method, path, { token, body })).status, `${method} ${path}`).toBe(404)
      expect((await call(method, path, { token: null, body })).status).toBe(401)
      if (method !== 'GET') expect((await call(method, path, { token: read, body })).status).toBe(403)
    }
  })
})
