// What a tenant with one token attempts against the control plane, on a real platform.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { type IncomingMessage, request } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { Berth, end } from '../support/berth.ts'
import { ExecSocket } from '../support/exec.ts'
import { until } from '../support/until.ts'

const berth = new Berth()
let control: Awaited<ReturnType<Berth['up']>>

interface Issued {
  id: string
  token: string
}

const issue = (kind = 'org', org_slug = 'personal'): Promise<Issued> =>
  berth.ok('POST', '/v1/tokens', { kind, org_slug })
const sandboxCall = (method: string, path: string, body?: object, token = berth.token) =>
  fetch(`${berth.addresses.sandbox}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
const socketAt = (rest: string, { token }: Issued) =>
  ExecSocket.open(`${berth.addresses.sandbox}/v1/sandboxes/box/${rest}`, token)

/** The program of a service: it answers every connection and keeps it open. */
const server = `use Socket; socket(my $s, 2, 1, 6); setsockopt($s, 1, 2, 1); bind($s, pack_sockaddr_in(8080, INADDR_ANY)); listen($s, 50);
while (accept(my $c, $s)) { if (!fork) { sysread $c, my $b, 65536; syswrite $c, "HTTP/1.1 200 OK\\r\\nContent-Length: 100\\r\\n\\r\\nhello"; sleep 600 } }`

beforeAll(async () => {
  control = await berth.up()
  expect((await sandboxCall('POST', '/v1/sandboxes', { name: 'box' })).status).toBe(201)
  const service = { cmd: 'perl', args: ['-e', server], http_port: 8080 }
  const made = await sandboxCall('PUT', '/v1/sandboxes/box/services/web?duration=1s', service)
  expect(made.status).toBe(200)
  await made.text()
})

afterAll(() => berth.destroy())

async function endsInTime(hasEnded: () => boolean): Promise<void> {
  const startedAt = performance.now()
  await until(hasEnded, 20)
  expect(performance.now() - startedAt).toBeLessThan(1000)
}

describe('a revoked token', () => {
  test('loses its terminal, its proxied connection, its watches and its control channel', async () => {
    const token = await issue()
    const terminal = await socketAt('exec?cmd=sh&tty=true', token)
    const proxy = await socketAt('proxy', token)
    proxy.socket.send(JSON.stringify({ host: 'localhost', port: 8080 }))
    const files = await socketAt('fs/watch', token)
    files.socket.send(JSON.stringify({ type: 'subscribe', paths: ['/tmp'] }))
    const ports = await socketAt('ports/watch', token)
    const channel = await socketAt('control', token)
    terminal.socket.send(Buffer.from('echo wor""king\n'))
    await until(() => terminal.output().includes('working'))
    await until(() => proxy.texts.some(({ status }) => status === 'connected'))
    await until(() => ports.said('port_list') !== undefined)
    const all = [terminal, proxy, files, ports, channel]
    expect(all.map(({ closed }) => closed)).toEqual(all.map(() => undefined))
    await berth.cli('tokens', 'revoke', token.id)
    await endsInTime(() => all.every(({ closed }) => closed !== undefined))
    expect(all.map(({ closed }) => closed?.code)).toEqual(all.map(() => 1008))
    const again = await ExecSocket.attempt(`${berth.addresses.sandbox}/v1/sandboxes/box/exec?cmd=true`, token.token)
    expect(again).toMatchObject({ status: 401 })
  })

  test('loses its service log and its command, which ends', async () => {
    const token = await issue()
    const log = openStream(`${berth.addresses.sandbox}/v1/sandboxes/box/services/web/logs?duration=10m`, token, 'GET')
    const exec = openStream(`${berth.addresses.sandbox}/v1/sandboxes/box/exec?cmd=sleep&cmd=600`, token, 'POST')
    await until(() => log.status === 200 && exec.status === 200)
    await berth.ok('DELETE', `/v1/tokens/${token.id}`)
    await endsInTime(() => log.ended && exec.ended)
    const running = async () =>
      ((await (await sandboxCall('GET', '/v1/sandboxes/box/exec')).json()) as { sessions: { command: string }[] })
        .sessions
    await until(async () => !(await running()).some(({ command }) => command.includes('sleep 600')))
  })

  test('loses its connection through the edge', async () => {
    const token = await issue()
    const seen = openStream(berth.addresses.edge, token, 'GET', { host: 'box.sandbox.localhost' })
    await until(() => seen.text === 'hello', 30)
    await berth.ok('DELETE', `/v1/tokens/${token.id}`)
    await endsInTime(() => seen.ended)
  })
})

function openStream(url: string, { token }: Issued, method: string, headers: Record<string, string> = {}) {
  const state = { status: undefined as number | undefined, text: '', ended: false }
  const finish = () => {
    state.ended = true
  }
  const call = request(url, { method, agent: false, headers: { authorization: `Bearer ${token}`, ...headers } })
  call.on('error', finish).on('close', finish)
  call.on('response', (reply: IncomingMessage) => {
    state.status = reply.statusCode
    reply.on('error', finish).on('data', (data) => {
      state.text += data
    })
  })
  call.end()
  return state
}

describe('one request', () => {
  test('nested 20,000 levels deep is refused, and so are other bodies that are not what they should be', async () => {
    const { token } = await issue()
    const send = async (body: string | Buffer) => {
      const headers = { authorization: `Bearer ${token}` }
      const reply = await fetch(`${berth.addresses.api}/v1/apps`, { method: 'POST', headers, body })
      return [reply.status, ((await reply.json()) as { error: string }).error]
    }
    const deep = (n: number) => `{"a":${'['.repeat(n)}${']'.repeat(n)}}`
    expect(await send(deep(20_000))).toEqual([400, 'the body is nested deeper than 64 levels'])
    expect(await send('['.repeat(500_000))).toEqual([400, 'the body is nested deeper than 64 levels'])
    expect(await send(Buffer.from([0x7b, 0xff, 0x7d]))).toEqual([400, 'the body is not valid UTF-8'])
    expect((await send('{"app_name":"\\ud800","org_slug":"personal"}'))[0]).toBe(400)
    expect((await send('{"app_name":"a\\u0000b","org_slug":"personal"}'))[0]).toBe(422)
    expect((await send('{"__proto__":{"app_name":"polluted","org_slug":"personal"}}'))[0]).toBe(422)
    expect((await send(deep(60)))[0]).toBe(422)
  })

  test('does not keep the control plane busy, whatever it carries', async () => {
    const { token } = await issue('read')
    const pages = `${berth.addresses.sandbox}/v1/sandboxes/box/fs/list?path=/tmp&pattern=${'['.repeat(100_000)}`
    const headers = { authorization: `Bearer ${token}` }
    const attempts = [
      () => fetch(pages, { headers }),
      () => fetch(`${berth.addresses.api}/v1/apps`, { headers: { authorization: `Bearer ${'fm2_,'.repeat(80_000)}` } }),
      () =>
        fetch(`${berth.addresses.api}/v1/apps/none/machines/00000000000000/exec`, {
          method: 'POST',
          headers,
          body: JSON.stringify({ cmd: '"\\"'.repeat(100_000) }),
        }),
    ]
    for (const attempt of attempts) {
      const startedAt = process.hrtime.bigint()
      const reply = await attempt()
      await reply.text()
      expect([400, 401, 403, 404]).toContain(reply.status)
      // Each of these took seconds or minutes of computation; a busy host needs far less than this to refuse them.
      expect(Number(process.hrtime.bigint() - startedAt) / 1e9).toBeLessThan(5)
    }
  })
})

describe('the root token', () => {
  test('cannot be revoked, is replaced by a command, and stays replaced after a restart', async () => {
    const old = berth.token
    const refused = await berth.call('DELETE', '/v1/tokens/root')
    expect(refused.status).toBe(409)
    expect(refused.body.error).toContain('berth tokens rotate-root')
    const socket = new WebSocket(`${berth.addresses.sandbox.replace('http', 'ws')}/v1/sandboxes/box/ports/watch`, {
      headers: { authorization: `Bearer ${old}` },
    })
    await once(socket, 'open')
    const { stdout } = await berth.cli('tokens', 'rotate-root')
    await endsInTime(() => socket.readyState === WebSocket.CLOSED)
    expect(readFileSync(`${berth.home}/token`, 'utf8').trim()).toBe(stdout.trim())
    expect(stdout.trim()).not.toBe(old)
    const status = async (token: string) =>
      (await fetch(`${berth.addresses.api}/v1/orgs`, { headers: { authorization: `Bearer ${token}` } })).status
    expect([await status(old), await status(berth.token)]).toEqual([401, 200])
    await end(control, 'SIGTERM')
    control = await berth.up()
    expect([await status(old), await status(berth.token)]).toEqual([401, 200])
    await berth.cli('orgs', 'list')
  })
})
