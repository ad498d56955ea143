// Requests that the edge authorized with a token end within a second after the token is no longer valid.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { request } from 'node:http'
import { setTimeout as pause } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import { hashToken } from '../../src/model/account/token.ts'
import { insertToken } from '../../src/store/account/token.ts'
import { useEdge } from '../support/edge.ts'
import { until } from '../support/until.ts'

const edge = useEdge()

async function issue(expiresInSeconds: number | null = null) {
  const text = `berth_${randomBytes(30).toString('hex').slice(0, 43)}`
  const id = randomBytes(8).toString('hex')
  await edge.org('org-one')
  const about = { kind: 'org', orgId: 'org-one', sandbox: null, name: '' } as const
  await insertToken(edge.database.db, { id, hash: hashToken(text), expiresInSeconds, ...about })
  return { id, headers: { authorization: `Bearer ${text}` } }
}

const revoke = (id: string) => edge.database.db.query('update token set revoked_at = now() where id = $1', [id])

async function endsInTime(hasEnded: () => boolean): Promise<void> {
  const startedAt = performance.now()
  await until(hasEnded, 10)
  expect(performance.now() - startedAt).toBeLessThan(1000)
}

async function openSocket(host: string, headers: Record<string, string>): Promise<WebSocket> {
  const socket = new WebSocket(`ws://127.0.0.1:${edge.port}/`, { headers: { host, ...headers } })
  socket.on('error', () => {})
  await once(socket, 'open')
  return socket
}

async function echoSandbox(): Promise<string> {
  const { port, server } = await edge.backend((_request, reply) => void reply.write('begin'))
  new WebSocketServer({ server }).on('connection', (socket) => socket.on('message', (data) => socket.send(data)))
  return edge.sandbox({ port, auth: 'sprite', orgId: 'org-one' })
}

test('a revoked token closes its WebSocket, and no other', async () => {
  const host = await echoSandbox()
  const [one, two] = [await issue(), await issue()]
  const [first, second] = [await openSocket(host, one.headers), await openSocket(host, two.headers)]
  first.send('hello')
  expect(String((await once(first, 'message'))[0])).toBe('hello')
  await revoke(one.id)
  await endsInTime(() => first.readyState === WebSocket.CLOSED)
  second.send('still')
  expect(String((await once(second, 'message'))[0])).toBe('still')
  second.terminate()
})

test('a token that expires closes its WebSocket', async () => {
  const host = await echoSandbox()
  const token = await issue(1)
  const socket = await openSocket(host, token.headers)
  const expiresAt = performance.now() + 1000
  await until(() => socket.readyState === WebSocket.CLOSED, 10)
  expect(performance.now()).toBeLessThan(expiresAt + 1000)
})

test('a revoked token ends a response that never ends by itself, and an upload', async () => {
  const host = await echoSandbox()
  const token = await issue()
  let hasEnded = false
  let text = ''
  const call = request({
    host: '127.0.0.1',
    port: edge.port,
    agent: false,
    method: 'POST',
    headers: { host, ...token.headers },
  })
  call
    .on('error', () => {})
    .on('close', () => {
      hasEnded = true
    })
  call.on('response', (reply) =>
    reply
      .on('data', (data) => {
        text += data
      })
      .on('error', () => {}),
  )
  call.write('part of a body')
  await until(() => text === 'begin')
  await pause(150) // long enough for the first check of a token that is valid
  expect(hasEnded).toBe(false)
  await revoke(token.id)
  await endsInTime(() => hasEnded)
})

test('a request to a public sandbox does not depend on the token it carries', async () => {
  const { port } = await edge.backend((_request, reply) => void reply.end('public'))
  const host = await edge.sandbox({ port, auth: 'public', orgId: 'org-one' })
  const token = await issue()
  await revoke(token.id)
  const reply = await fetch(`http://127.0.0.1:${edge.port}/`, { headers: token.headers }).catch(() => undefined)
  expect(reply?.status).toBe(404) // without the host name of the sandbox
  const socketless = await new Promise<number>((resolve) => {
    request({ host: '127.0.0.1', port: edge.port, agent: false, headers: { host, ...token.headers } }, (answer) => {
      answer.resume()
      resolve(answer.statusCode!)
    }).end()
  })
  expect(socketless).toBe(200)
})
