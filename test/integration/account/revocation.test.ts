// Everything that is opened with a token ends within a second after the token is no longer valid.
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type ClientRequest, type IncomingMessage, request } from 'node:http'
import { connect, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { sandboxSockets } from '../../../src/api/routes.ts'
import type { BoxDriver, BoxSession } from '../../../src/drivers/box/driver.ts'
import { ExecSocket } from '../../support/exec.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'
import { hostSessions } from '../../support/session.ts'
import { until } from '../../support/until.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-revocation-`)
const commands: ChildProcess[] = []
const held = new Set<BoxSession>()
/** A test sets it to make sandboxes start slowly. */
let gate: PromiseWithResolvers<void> | undefined
let waking = 0

/** Runs commands on the host. */
const boxes: Partial<BoxDriver> = {
  async ensureBox() {
    waking += 1
    await gate?.promise
    waking -= 1
  },
  spawnInBox(_spec, command) {
    const [program, ...args] = command.argv
    const child = spawn(program, args, { cwd: directory, detached: true })
    commands.push(child)
    return child
  },
  ...hostSessions(directory, held),
}

const platform = usePlatform({ boxes })
const machines = machinesOf(platform, 'shop')
let api: string
let sandbox: string

beforeAll(async () => {
  api = await platform.server.listen({ host: '127.0.0.1', port: 0 })
  sandbox = await platform.sandboxServer.listen({ host: '127.0.0.1', port: 0 })
})

beforeEach(async () => {
  expect((await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'box' } })).status).toBe(201)
})

const opened: { destroy(): void }[] = []

afterEach(async () => {
  for (const each of opened.splice(0)) each.destroy()
  for (const session of held) session.signal(9)
  await until(() => held.size === 0)
  for (const child of commands.splice(0)) {
    try {
      process.kill(-child.pid!, 'SIGKILL')
    } catch {
      // It has ended.
    }
  }
})

afterAll(() => {
  rmSync(directory, { recursive: true, force: true })
})

interface Issued {
  id: string
  token: string
}

async function issue(kind = 'org', extra: object = {}): Promise<Issued> {
  const made = await platform.call('POST', '/v1/tokens', { body: { kind, org_slug: 'personal', ...extra } })
  expect(made.status).toBe(201)
  return made.body
}

const revoke = async ({ id }: Issued) => {
  expect((await platform.call('DELETE', `/v1/tokens/${id}`)).status).toBe(204)
}

/** Asserts that a connection ends within a second from now. */
async function endsInTime(hasEnded: () => boolean): Promise<void> {
  const startedAt = performance.now()
  await until(hasEnded, 10)
  expect(performance.now() - startedAt).toBeLessThan(1000)
}

async function open(path: string, { token }: Issued): Promise<ExecSocket> {
  const socket = await ExecSocket.open(`${sandbox}/v1/sandboxes/box/${path}`, token)
  opened.push({ destroy: () => socket.socket.terminate() })
  return socket
}

const countConnections = (server: Server) =>
  new Promise<number>((resolve, reject) =>
    server.getConnections((error, count) => (error ? reject(error) : resolve(count))),
  )

interface Stream {
  call: ClientRequest
  status: number | undefined
  text: string
  ended: boolean
}

/** Sends a request and records its response as it arrives. */
function stream(method: string, url: string, { token }: Issued, headers: Record<string, string> = {}): Stream {
  const call = request(url, { method, agent: false, headers: { authorization: `Bearer ${token}`, ...headers } })
  const state: Stream = { call, status: undefined, text: '', ended: false }
  const end = () => {
    state.ended = true
  }
  call.on('error', end).on('close', end)
  call.on('response', (reply: IncomingMessage) => {
    state.status = reply.statusCode
    reply.on('data', (data) => {
      state.text += data
    })
    reply.on('error', end)
  })
  call.flushHeaders()
  opened.push(call)
  return state
}

describe('a revoked token closes', () => {
  const cat = 'exec?cmd=cat&stdin=true'

  test('a command', async () => {
    const token = await issue()
    const socket = await open(cat, token)
    socket.stdin('before\n')
    await until(() => socket.output(1) === 'before\n')
    await revoke(token)
    await endsInTime(() => socket.closed !== undefined)
    expect(socket.closed).toEqual({ code: 1008 })
  })

  test('a client that attached to the command of another token, which keeps running', async () => {
    const [owner, other] = [await issue(), await issue()]
    const first = await open(cat, owner)
    await until(() => first.said('session_info') !== undefined)
    const second = await open(`exec/${first.sessionId}`, other)
    first.stdin('one\n')
    await until(() => second.output(1) === 'one\n')
    await revoke(other)
    await endsInTime(() => second.closed !== undefined)
    first.stdin('two\n')
    await until(() => first.output(1) === 'one\ntwo\n')
    expect(first.closed).toBeUndefined()
  })

  // The table of all sockets: a new one is tested without being added here.
  test.each(sandboxSockets.map(({ path, id }) => [id, path] as const))('the socket %s', async (_id, path) => {
    const root = { id: 'root', token: platform.rootToken }
    const running = await open('exec?cmd=sleep&cmd=60', root)
    await until(() => running.said('session_info') !== undefined)
    const rest = path.replace('/v1/sandboxes/{name}/', '').replace('{session_id}', running.sessionId)
    const token = await issue()
    const socket = await open(rest === 'exec' ? 'exec?cmd=sleep&cmd=60' : rest, token)
    await pause(150) // long enough for the first check of a token that is valid
    expect(socket.closed).toBeUndefined()
    await revoke(token)
    await endsInTime(() => socket.closed !== undefined)
    expect(socket.closed).toEqual({ code: 1008 })
    expect(running.closed).toBeUndefined()
  })

  test('a control channel in the middle of an operation', async () => {
    const token = await issue()
    const socket = await open('control', token)
    socket.socket.send('control:{"type":"op.start","op":"exec","args":{"cmd":["cat"],"stdin":"true"}}')
    await until(() => socket.said('session_info') !== undefined)
    await revoke(token)
    await endsInTime(() => socket.closed !== undefined)
    expect(socket.closed).toEqual({ code: 1008 })
  })

  test('a client that reads nothing, not even the close frame', async () => {
    const token = await issue()
    const { port } = new URL(sandbox)
    const client = connect(Number(port), '127.0.0.1')
    opened.push(client)
    const head = [`Authorization: Bearer ${token.token}`, 'Upgrade: websocket', 'Connection: Upgrade', 'Host: x']
    const key = ['Sec-WebSocket-Version: 13', `Sec-WebSocket-Key: ${Buffer.alloc(16).toString('base64')}`]
    client.write(`GET /v1/sandboxes/box/exec?cmd=yes HTTP/1.1\r\n${[...head, ...key].join('\r\n')}\r\n\r\n`)
    await until(async () => (await platform.callSandbox('GET', '/v1/sandboxes/box/exec')).body.count === 1)
    const serverSide = () => countConnections(platform.sandboxServer.server)
    const before = await serverSide()
    await revoke(token)
    const startedAt = performance.now()
    await until(async () => (await serverSide()) < before, 10)
    expect(performance.now() - startedAt).toBeLessThan(1000)
  })

  test('the response of a command, and ends the command', async () => {
    const token = await issue()
    const seen = stream('POST', `${sandbox}/v1/sandboxes/box/exec?cmd=sh&cmd=-c&cmd=echo+up;exec+sleep+60`, token)
    seen.call.end()
    await until(() => seen.text.includes('up'))
    const [child] = commands.slice(-1)
    await revoke(token)
    await endsInTime(() => seen.ended)
    await until(() => child!.exitCode !== null || child!.signalCode !== null)
  })

  test('a watch of sandboxes', async () => {
    const token = await issue('read')
    const seen = stream('GET', `${sandbox}/v1/sandboxes`, token, { accept: 'application/x-ndjson' })
    seen.call.end()
    await until(() => seen.text.includes('"box"'))
    await revoke(token)
    await endsInTime(() => seen.ended)
  })

  test('a download whose client reads slowly', async () => {
    const token = await issue('read')
    const size = 64 * 1024 * 1024
    writeFileSync(`${directory}/large`, Buffer.alloc(size))
    const client = connect(Number(new URL(sandbox).port), '127.0.0.1')
    opened.push(client)
    let received = 0
    client
      .on('error', () => {})
      .on('data', (data) => {
        received += data.length
      })
    const path = `/v1/sandboxes/box/fs/read?path=${directory}/large`
    client.write(`GET ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token.token}\r\n\r\n`)
    await until(() => received > 0)
    client.pause()
    const serverSide = () => countConnections(platform.sandboxServer.server)
    const before = await serverSide()
    await revoke(token)
    const startedAt = performance.now()
    await until(async () => (await serverSide()) < before, 10)
    expect(performance.now() - startedAt).toBeLessThan(1000)
    expect(received).toBeLessThan(size)
  })

  test('an upload, which leaves no file', async () => {
    const token = await issue()
    const seen = stream('PUT', `${sandbox}/v1/sandboxes/box/fs/write?path=${directory}/upload`, token)
    seen.call.write('x'.repeat(1000))
    await pause(150)
    expect(seen.ended).toBe(false)
    await revoke(token)
    await endsInTime(() => seen.ended)
    const found = await platform.callSandbox('GET', `/v1/sandboxes/box/fs/read?path=${directory}/upload`)
    expect(found.status).toBe(404)
  })

  test('the log of an app, the log of a machine and a wait for a state', async () => {
    await platform.createApp('shop')
    const id = await machines.started()
    const token = await issue('read')
    const app = stream('GET', `${api}/v1/apps/shop/logs?follow=true`, token)
    const machine = stream('GET', `${api}/v1/apps/shop/machines/${id}/logs?follow=true`, token)
    const wait = stream('GET', `${api}/v1/apps/shop/machines/${id}/wait?state=stopped&timeout=60`, token)
    for (const { call } of [app, machine, wait]) call.end()
    await until(() => app.status === 200 && machine.status === 200)
    await revoke(token)
    await endsInTime(() => app.ended && machine.ended && wait.ended)
    expect(wait.status).toBe(401)
    expect(JSON.parse(wait.text)).toEqual({ error: 'invalid token' })
  })
})

describe('everything opened with a token ends', () => {
  const sleep = 'exec?cmd=sleep&cmd=60'

  test('when it expires', async () => {
    const token = await issue('org', { expires_in_seconds: 2 })
    const socket = await open(sleep, token)
    const expiresAt = performance.now() + 2000
    await until(() => socket.closed !== undefined, 10)
    expect(performance.now()).toBeLessThan(expiresAt + 1000)
    expect(socket.closed).toEqual({ code: 1008 })
  })

  test('when its expiry is moved to now', async () => {
    const token = await issue('org', { expires_in_seconds: 3600 })
    const socket = await open(sleep, token)
    await platform.sql('update token set expires_at = now() where id = $1', [token.id])
    await endsInTime(() => socket.closed !== undefined)
  })

  test('when its row is deleted, as with its organization', async () => {
    const token = await issue()
    const socket = await open(sleep, token)
    await platform.sql('delete from token where id = $1', [token.id])
    await endsInTime(() => socket.closed !== undefined)
  })

  test('when its app is deleted', async () => {
    await platform.createApp('shop')
    const made = await platform.call('POST', '/v1/apps/shop/deploy_token', { body: {} })
    expect(made.status).toBe(200)
    const id = await machines.started()
    const seen = stream('GET', `${api}/v1/apps/shop/machines/${id}/logs?follow=true`, made.body)
    seen.call.end()
    await until(() => seen.status === 200)
    expect((await platform.call('DELETE', '/v1/apps/shop?force=true')).status).toBe(202)
    await endsInTime(() => seen.ended)
  })

  test('when it revokes itself, and that request is answered', async () => {
    const token = await issue()
    const socket = await open(sleep, token)
    const reply = await platform.call('DELETE', `/v1/tokens/${token.id}`, { token: token.token })
    expect(reply.status).toBe(204)
    await endsInTime(() => socket.closed !== undefined)
  })
})

describe('a token that is revoked while the sandbox is being woken', () => {
  beforeEach(() => {
    gate = Promise.withResolvers()
  })

  afterEach(() => {
    gate = undefined
  })

  test('starts no command over a socket', async () => {
    const token = await issue()
    const attempt = ExecSocket.attempt(`${sandbox}/v1/sandboxes/box/exec?cmd=sleep&cmd=60`, token.token).catch(
      (error: Error) => error,
    )
    await until(() => waking > 0)
    await revoke(token)
    expect(await attempt).toBeInstanceOf(Error)
    gate!.resolve()
    await until(() => waking === 0)
    expect((await platform.callSandbox('GET', '/v1/sandboxes/box/exec')).body.count).toBe(0)
    expect(commands).toEqual([])
  })

  test('leaves no command of a request running', async () => {
    const token = await issue()
    const seen = stream('POST', `${sandbox}/v1/sandboxes/box/exec?cmd=sleep&cmd=60`, token)
    seen.call.end()
    await until(() => waking > 0)
    await revoke(token)
    await endsInTime(() => seen.ended)
    gate!.resolve()
    await until(() => commands.length === 1)
    await until(async () => (await platform.callSandbox('GET', '/v1/sandboxes/box/exec')).body.count === 0)
    expect(commands[0]!.signalCode).toBe('SIGTERM')
  })
})
