import { once } from 'node:events'
import { request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
let ports: { platform: number; sandbox: number }
let token = ''

beforeAll(async () => {
  const listen = async (server: typeof platform.server) => {
    await server.listen({ port: 0, host: '127.0.0.1' })
    return (server.server.address() as AddressInfo).port
  }
  ports = { platform: await listen(platform.server), sandbox: await listen(platform.sandboxServer) }
})

beforeEach(async () => {
  await platform.createOrg('acme')
  token = await platform.createToken('org', 'acme')
  await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'box' }, token })
  await platform.setQuotas({ sockets: 2 }, 'acme')
})

async function countSockets(): Promise<number> {
  const { body } = await platform.call('GET', '/v1/orgs/acme/quotas')
  return body.quotas.find((quota: { name: string }) => quota.name === 'sockets').used
}

interface Opened {
  status: number
  headers: Record<string, unknown>
  body: string
  close(): void
}

/** Opens a stream of changes, which stays open until the client leaves. */
function openStream(bearer = token, path = '/v1/sandboxes', port = ports.sandbox): Promise<Opened> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${bearer}`, accept: 'application/x-ndjson' }
    const asked = request({ port, path, headers, agent: false })
    asked.on('error', reject)
    asked.on('response', (answer) => {
      const { statusCode: status = 0 } = answer
      answer.on('error', () => {})
      if (status === 200) return resolve({ status, headers: answer.headers, body: '', close: () => asked.destroy() })
      let body = ''
      answer.on('data', (part) => {
        body += part
      })
      answer.on('end', () => resolve({ status, headers: answer.headers, body, close: () => {} }))
    })
    asked.end()
  })
}

async function openSocket(bearer = token): Promise<Opened> {
  const socket = new WebSocket(`ws://127.0.0.1:${ports.sandbox}/v1/sandboxes/box/control`, {
    headers: { authorization: `Bearer ${bearer}` },
  })
  socket.on('error', () => {})
  return new Promise((resolve) => {
    socket.once('open', () => resolve({ status: 101, headers: {}, body: '', close: () => socket.terminate() }))
    socket.once('unexpected-response', async (_request, answer) => {
      let body = ''
      answer.on('data', (part) => {
        body += part
      })
      await once(answer, 'end')
      resolve({ status: answer.statusCode ?? 0, headers: answer.headers, body, close: () => {} })
    })
  })
}

describe.each([
  ['WebSockets', () => openSocket(), 101],
  ['streams', () => openStream(), 200],
] as const)('the quota sockets limits %s', (_, open, success) => {
  test('and frees them when they are closed', async () => {
    const first = await open()
    const second = await open()
    expect([first.status, second.status]).toEqual([success, success])
    expect(await countSockets()).toBe(2)
    const refused = await open()
    expect(refused.status).toBe(429)
    expect(refused.headers['retry-after']).toBe('1')
    expect(JSON.parse(refused.body)).toMatchObject({
      error: 'quota_exceeded',
      message:
        'quota sockets exceeded: organization acme uses 2 of 2; end some, or ask the operator of the platform to raise the quota',
      limit: 2,
      current_count: 2,
    })
    first.close()
    await until(async () => (await countSockets()) === 1)
    const third = await open()
    expect(third.status).toBe(success)
    second.close()
    third.close()
    await until(async () => (await countSockets()) === 0)
  })

  test('of concurrent attempts lets exactly as many succeed as fit', async () => {
    const opened = await Promise.all(Array.from({ length: 12 }, () => open()))
    expect(opened.filter(({ status }) => status === success)).toHaveLength(2)
    expect(opened.filter(({ status }) => status === 429)).toHaveLength(10)
    for (const each of opened) each.close()
    await until(async () => (await countSockets()) === 0)
  })
})

test('a refused handshake and an unknown sandbox leave nothing counted', async () => {
  const socket = new WebSocket(`ws://127.0.0.1:${ports.sandbox}/v1/sandboxes/absent/control`, {
    headers: { authorization: `Bearer ${token}` },
  })
  const [, answer] = await once(socket, 'unexpected-response')
  expect(answer.statusCode).toBe(404)
  answer.resume()
  await until(async () => (await countSockets()) === 0)
  expect((await openStream(token, '/v1/sandboxes/absent/services/x/logs')).status).toBe(404)
  expect(await countSockets()).toBe(0)
})

test('requests that wait count, and root tokens do not', async () => {
  await platform.createApp('shop', { org_slug: 'acme' })
  const machine = await platform.call('POST', '/v1/apps/shop/machines', {
    body: { config: { image: 'nginx:1' }, skip_launch: true },
  })
  const path = `/v1/apps/shop/machines/${machine.body.id}/wait?state=started&timeout=20`
  const waiting = [1, 2].map(() => {
    const asked = request({ port: ports.platform, path, headers: { authorization: `Bearer ${token}` }, agent: false })
    asked.on('error', () => {})
    asked.end()
    return asked
  })
  await until(async () => (await countSockets()) === 2)
  const refused = await openStream(token, path, ports.platform)
  expect(refused.status).toBe(429)
  expect(JSON.parse(refused.body)).toMatchObject({ status: 'quota_exceeded' })
  const asRoot = await openStream(platform.rootToken)
  expect(asRoot.status).toBe(200)
  asRoot.close()
  await platform.sql(`update machine set state = 'started'`)
  await until(async () => (await countSockets()) === 0)
  for (const asked of waiting) asked.destroy()
})
