import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage, type RequestOptions, type ServerResponse } from 'node:http'
import { createServer as createTcpServer } from 'node:net'
import { Readable } from 'node:stream'
import { setTimeout as pause } from 'node:timers/promises'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import { createAccess } from '../../src/edge/routing/access.ts'
import type { SandboxRoute } from '../../src/edge/routing/sandbox.ts'
import { mintMacaroon } from '../../src/model/account/macaroon.ts'
import { hashToken } from '../../src/model/account/token.ts'
import { insertToken } from '../../src/store/account/token.ts'
import { useEdge } from '../support/edge.ts'
import { attenuate, caveat, masks } from '../support/macaroon.ts'
import { until } from '../support/until.ts'

const edge = useEdge({ waitTimeoutMs: 1_500 })

interface Reply {
  status: number
  headers: IncomingMessage['headers']
  trailers: IncomingMessage['trailers']
  body: Buffer
}

async function ask(host: string, options: RequestOptions & { body?: string | Buffer | Readable } = {}): Promise<Reply> {
  const { body, ...rest } = options
  const call = httpRequest({
    host: '127.0.0.1',
    port: edge.port,
    agent: false,
    ...rest,
    headers: { host, ...(rest.headers as object) },
  })
  if (body instanceof Readable) body.pipe(call)
  else call.end(body)
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  return { status: reply.statusCode!, headers: reply.headers, trailers: {}, body: await whole(reply) }
}

async function whole(stream: Readable): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}

const say = (text: string) => (_request: IncomingMessage, reply: ServerResponse) => void reply.end(text)
const json = (reply: Reply) => JSON.parse(reply.body.toString())

async function token(kind: 'root' | 'org' | 'read' | 'sandbox', orgId: string | null, sandbox: string | null = null) {
  const text = `berth_${randomBytes(30).toString('hex').slice(0, 43)}`
  if (orgId) await edge.org(orgId)
  const id = randomBytes(8).toString('hex')
  await insertToken(edge.database.db, {
    id,
    hash: hashToken(text),
    kind,
    orgId,
    sandbox,
    name: '',
    expiresInSeconds: null,
  })
  return { id, text, headers: { authorization: `Bearer ${text}` } }
}

test('a host name is routed to the service that owns the port, and unknown ones get 404', async () => {
  const [one, two] = await Promise.all([edge.backend(say('one')), edge.backend(say('two'))])
  const [first, second] = [await edge.sandbox({ port: one.port }), await edge.sandbox({ port: two.port })]
  expect((await ask(first)).body.toString()).toBe('one')
  expect((await ask(second)).body.toString()).toBe('two')
  expect((await ask(`${second.toUpperCase()}:4282`)).body.toString()).toBe('two')
  const unknown = await ask('nobody.sandbox.test')
  expect([unknown.status, json(unknown)]).toEqual([
    404,
    { error: 'not_found', message: 'nothing is known as nobody.sandbox.test' },
  ])
  expect((await ask(`127.0.0.1:${edge.port}`, { path: '/healthz' })).status).toBe(200)
  expect((await ask('nobody.sandbox.test', { path: '/healthz' })).status).toBe(404)
})

test('an absolute request target overrides the Host field', async () => {
  const backend = await edge.backend((request, reply) => reply.end(`${request.headers.host} ${request.url}`))
  const host = await edge.sandbox({ port: backend.port })
  const answer = await edge.raw(`GET http://${host}/a?b=1 HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n`)
  expect(answer).toContain(`${host} /a?b=1`)
})

test('the program gets the forwarding headers and no hop-by-hop headers', async () => {
  const backend = await edge.backend((request, reply) => {
    reply.setHeader('keep-alive', 'timeout=7')
    reply.end(JSON.stringify(request.rawHeaders))
  })
  const host = await edge.sandbox({ port: backend.port })
  const reply = await ask(host, {
    headers: {
      'X-Forwarded-For': '203.0.113.9',
      'X-Forwarded-Proto': 'https',
      'X-Forwarded-Port': '1',
      'X-Forwarded-Host': 'other',
      'X-Forwarded-Prefix': '/admin',
      'Fly-Client-IP': '1.1.1.1',
      'Fly-Machine-Id': '1',
      Forwarded: 'for=1.1.1.1',
      X_Forwarded_For: '9.9.9.9',
      Fly_Client_Ip: '9.9.9.9',
      'Fly-Prefer-Region': 'ams',
      Connection: 'close, X-Private',
      'X-Private': '1',
      'Proxy-Authorization': 'secret',
      TE: 'trailers',
      'X-Kept': 'yes',
    },
  })
  const raw: string[] = JSON.parse(reply.body.toString())
  const sent = Object.fromEntries(raw.flatMap((name, i) => (i % 2 ? [] : [[name.toLowerCase(), raw[i + 1]]])))
  expect(sent).toMatchObject({
    host,
    'x-kept': 'yes',
    'fly-prefer-region': 'ams',
    'x-forwarded-for': '203.0.113.9, 127.0.0.1',
    'x-forwarded-proto': 'http',
    'x-forwarded-host': host,
    'x-forwarded-port': String(edge.port),
    'fly-client-ip': '127.0.0.1',
    via: '1.1 berth',
  })
  const dropped = ['x-private', 'proxy-authorization', 'te', 'x_forwarded_for', 'connection']
  const invented = ['forwarded', 'fly-machine-id', 'fly_client_ip', 'x-forwarded-prefix']
  for (const name of [...dropped, ...invented]) expect(Object.keys(sent)).not.toContain(name)
  expect(reply.headers['fly-request-id']).toBe(sent['fly-request-id'])
  expect(reply.headers['keep-alive']).toBeUndefined()
})

test('a protected sandbox needs a token that may see it', async () => {
  const backend = await edge.backend((request, reply) => reply.end(String(request.headers.authorization)))
  const host = await edge.sandbox({ name: 'locked', auth: 'sprite', port: backend.port })
  const anonymous = await ask(host)
  expect([anonymous.status, anonymous.headers['www-authenticate'], json(anonymous).error]).toEqual([
    401,
    'Bearer realm="berth"',
    'unauthorized',
  ])
  const status = async (made: Promise<{ headers: object }>) =>
    (await ask(host, { headers: (await made).headers as never })).status
  expect(await status(token('root', null))).toBe(200)
  expect(await status(token('org', 'acme'))).toBe(200)
  expect(await status(token('read', 'acme'))).toBe(200)
  expect(await status(token('sandbox', 'acme', 'locked'))).toBe(200)
  expect(await status(token('sandbox', 'acme', 'another'))).toBe(401)
  expect(await status(token('org', 'strangers'))).toBe(401)
  expect((await ask(host, { headers: { authorization: 'Bearer guessed' } })).status).toBe(401)
  expect((await ask(host, { headers: { authorization: 'Basic Zm9vOmJhcg==' } })).status).toBe(401)
  expect(backend.requests).toHaveLength(4)
})

test('a sandbox for admins rejects lesser tokens as soon as the setting changes', async () => {
  const backend = await edge.backend(say('in'))
  const host = await edge.sandbox({ name: 'inner', auth: 'sprite', access: 'admins', port: backend.port })
  const [root, org, reader, own] = await Promise.all([
    token('root', null),
    token('org', 'acme'),
    token('read', 'acme'),
    token('sandbox', 'acme', 'inner'),
  ])
  for (const { headers } of [root, org]) expect((await ask(host, { headers })).status).toBe(200)
  for (const { headers } of [reader, own]) {
    const refused = await ask(host, { headers })
    expect([refused.status, json(refused).error]).toEqual([403, 'forbidden'])
  }
  const stranger = await token('org', 'strangers')
  expect((await ask(host, { headers: stranger.headers })).status).toBe(401)
  await edge.database.db.query(`update sandbox set private_access = 'org_users' where name = 'inner'`)
  await until(() => edge.table.findSandbox(host)?.access?.adminsOnly === false)
  expect((await ask(host, { headers: reader.headers })).status).toBe(200)
})

test('a platform token is not forwarded to the program, and other tokens are', async () => {
  const backend = await edge.backend((request, reply) => reply.end(String(request.headers.authorization)))
  const open = await edge.sandbox({ port: backend.port })
  const locked = await edge.sandbox({ auth: 'sprite', port: backend.port })
  const { headers } = await token('org', 'acme')
  expect((await ask(locked, { headers })).body.toString()).toBe('undefined')
  expect((await ask(open, { headers })).body.toString()).toBe('undefined')
  const others = { authorization: 'Bearer of-another-platform' }
  expect((await ask(open, { headers: others })).body.toString()).toBe('Bearer of-another-platform')
})

test('a revoked token stops working within a second', async () => {
  const backend = await edge.backend(say('in'))
  const host = await edge.sandbox({ auth: 'sprite', port: backend.port })
  const { id, headers } = await token('org', 'acme')
  let time = 0
  const access = createAccess(edge.database.db, () => time)
  const isAllowed = async () =>
    (await access.check(edge.table.find(host) as SandboxRoute, headers.authorization)).allowed
  expect((await ask(host, { headers })).status).toBe(200)
  expect(await isAllowed()).toBe(true)
  await edge.database.db.query('update token set revoked_at = now() where id = $1', [id])
  time = 999
  expect(await isAllowed()).toBe(true)
  time = 1_000
  expect(await isAllowed()).toBe(false)
  await until(async () => (await ask(host, { headers })).status === 401)
})

test('a token with appended caveats opens no private address, and is hidden from programs behind public ones', async () => {
  const backend = await edge.backend((request, reply) => reply.end(String(request.headers.authorization)))
  const secret = randomBytes(32)
  const text = mintMacaroon({ tokenId: 'derived' }, secret)
  const about = { kind: 'root', orgId: null, sandbox: null, name: '', expiresInSeconds: null } as const
  await insertToken(edge.database.db, { id: 'derived', hash: hashToken(text), ...about })
  const derived = attenuate(text, caveat.action(masks.r))
  const [open, locked] = [
    await edge.sandbox({ port: backend.port }),
    await edge.sandbox({ port: backend.port, auth: 'sprite' }),
  ]
  const sent = (tokens: string) => ({ headers: { authorization: `FlyV1 ${tokens}` } })
  expect((await ask(locked, sent(text))).status).toBe(200)
  expect((await ask(locked, sent(derived))).status).toBe(401)
  for (const tokens of [derived, `${derived},${text}`])
    expect((await ask(open, sent(tokens))).body.toString()).toBe('undefined')
})

test('a change of a route takes effect by its notification, not by the periodic reload', async () => {
  const [one, two] = await Promise.all([edge.backend(say('one')), edge.backend(say('two'))])
  const host = await edge.sandbox({ name: 'moving', port: one.port })
  expect((await ask(host)).body.toString()).toBe('one')
  const change = async (sql: string, isSo: (reply: Reply) => boolean) => {
    await edge.database.db.query(sql)
    await until(async () => isSo(await ask(host)), 9) // the periodic reload takes ten seconds
  }
  await change(
    `update service set http_port = ${two.port} where sandbox_id = 'moving'`,
    (reply) => reply.body.toString() === 'two',
  )
  await change(`update sandbox set url_auth = 'sprite' where id = 'moving'`, ({ status }) => status === 401)
  await change(`update sandbox set url_auth = 'public' where id = 'moving'`, ({ status }) => status === 200)
  await change(`update sandbox set state = 'deleting' where id = 'moving'`, ({ status }) => status === 404)
})

test('a WebSocket works in both directions', async () => {
  const backend = await edge.backend(say('http'))
  const sockets = new WebSocketServer({ server: backend.server })
  sockets.on('connection', (socket) =>
    socket.on('message', (data, isBinary) => socket.send(data, { binary: isBinary })),
  )
  const host = await edge.sandbox({ port: backend.port })
  const client = new WebSocket(`ws://127.0.0.1:${edge.port}/socket`, { headers: { host } })
  await once(client, 'open')
  const large = randomBytes(3_000_000)
  client.send('hello')
  expect(String((await once(client, 'message'))[0])).toBe('hello')
  client.send(large)
  expect(large.equals((await once(client, 'message'))[0] as Buffer)).toBe(true)
  client.close(4001, 'enough')
  const [code] = await once(client, 'close')
  expect(code).toBe(4001)
  await until(() => sockets.clients.size === 0)
})

test('a WebSocket to a protected sandbox needs a token', async () => {
  const backend = await edge.backend(say('http'))
  const host = await edge.sandbox({ auth: 'sprite', port: backend.port })
  const client = new WebSocket(`ws://127.0.0.1:${edge.port}/`, { headers: { host } })
  const [, reply] = (await once(client, 'unexpected-response')) as [unknown, IncomingMessage]
  expect(reply.statusCode).toBe(401)
  client.on('error', () => {})
  client.terminate()
})

test.each(['with its length', 'in chunks'])('fifty megabytes are forwarded in both directions %s', async (how) => {
  const backend = await edge.backend((request, reply) => {
    if (how === 'with its length') reply.setHeader('content-length', request.headers['content-length']!)
    request.pipe(reply)
  })
  const host = await edge.sandbox({ port: backend.port })
  const block = randomBytes(1_000_000)
  const sent = createHash('sha256')
  async function* blocks() {
    for (let index = 0; index < 50; index++) {
      sent.update(block)
      yield block
    }
  }
  const headers = how === 'with its length' ? { 'content-length': 50_000_000 } : { 'transfer-encoding': 'chunked' }
  const call = httpRequest({
    host: '127.0.0.1',
    port: edge.port,
    method: 'POST',
    agent: false,
    headers: { host, ...headers },
  })
  Readable.from(blocks()).pipe(call)
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  const received = createHash('sha256')
  let bytes = 0
  for await (const chunk of reply) {
    bytes += chunk.length
    received.update(chunk)
  }
  expect(bytes).toBe(50_000_000)
  expect(received.digest('hex')).toBe(sent.digest('hex'))
})

test('a stream is forwarded piece by piece', async () => {
  const replies: ServerResponse[] = []
  const backend = await edge.backend((_request, reply) => {
    replies.push(reply)
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    reply.write('data: 1\n\n')
  })
  const host = await edge.sandbox({ port: backend.port })
  const call = httpRequest({ host: '127.0.0.1', port: edge.port, agent: false, headers: { host } }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  expect(String((await once(reply, 'data'))[0])).toBe('data: 1\n\n')
  replies[0]!.write('data: 2\n\n')
  expect(String((await once(reply, 'data'))[0])).toBe('data: 2\n\n')
  replies[0]!.end()
  await once(reply, 'end')
})

test('the program notices a client that disconnects before or during the response', async () => {
  let closed = 0
  const backend = await edge.backend((request, reply) => {
    reply.on('close', () => {
      closed += 1
    })
    if (request.url === '/stream') reply.write('first')
  })
  const host = await edge.sandbox({ port: backend.port })
  for (const path of ['/silent', '/stream']) {
    const socket = edge.connect()
    socket.write(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\n\r\n`)
    const before = backend.requests.length
    await until(() => backend.requests.length > before)
    const count = closed
    socket.destroy()
    await until(() => closed === count + 1)
  }
})

test('a truncated response is not completed', async () => {
  const breaking = createTcpServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', (data) => {
      const head = String(data).includes('/chunks')
        ? 'Transfer-Encoding: chunked\r\n\r\n5\r\nhel'
        : 'Content-Length: 10\r\n\r\nhel'
      socket.end(`HTTP/1.1 200 OK\r\n${head}`)
    })
  })
  await new Promise<void>((resolve) => breaking.listen(0, '127.0.0.1', resolve))
  const host = await edge.sandbox({ port: (breaking.address() as { port: number }).port })
  for (const path of ['/length', '/chunks']) await expect(ask(host, { path })).rejects.toThrow(/aborted|hang up/)
  breaking.close()
})

test('a program that closes the connection or sends garbage causes a 502', async () => {
  const answers: Record<string, string> = {
    '/nothing': '',
    '/nonsense': 'hello\r\n\r\n',
    '/both': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    '/twice': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab',
    '/switch': 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n',
  }
  const odd = createTcpServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', (data) => socket.end(answers[/ (\S+)/.exec(String(data))![1]!] ?? ''))
  })
  await new Promise<void>((resolve) => odd.listen(0, '127.0.0.1', resolve))
  const host = await edge.sandbox({ port: (odd.address() as { port: number }).port })
  for (const path of Object.keys(answers)) {
    const reply = await ask(host, { path })
    expect([path, reply.status, json(reply).error]).toEqual([path, 502, 'bad_gateway'])
  }
  odd.close()
})

test.each([
  ['line feeds alone', 'HTTP/1.1 200 OK\nContent-Type: text/plain\nX-A: 1\n\nhello\n\r\n\r\n'],
  ['a CGI program behind an HTTP server', 'HTTP/1.1 200 OK\r\nContent-Type: text/plain\nX-A: 1\n\nhello\n\r\n\r\n'],
  ['a last line with CRLF', 'HTTP/1.1 200 OK\nContent-Type: text/plain\nX-A: 1\r\n\r\nhello\n\r\n\r\n'],
])('a response whose head has line ends of %s reaches the client', async (_name, answer) => {
  const program = createTcpServer((socket) => {
    socket.on('error', () => {})
    socket.setNoDelay(true)
    // Byte by byte, so that the end of the head is found wherever it is divided.
    socket.once('data', async () => {
      for (const byte of answer) await new Promise((resolve) => socket.write(byte, resolve))
      socket.end()
    })
  })
  await new Promise<void>((resolve) => program.listen(0, '127.0.0.1', resolve))
  try {
    const host = await edge.sandbox({ port: (program.address() as { port: number }).port })
    const reply = await ask(host, { path: '/' })
    expect([reply.status, String(reply.body)]).toEqual([200, 'hello\n\r\n\r\n'])
    expect(reply.headers).toMatchObject({ 'content-type': 'text/plain', 'x-a': '1' })
  } finally {
    program.close()
  }
})

test('many requests share a connection, also when pipelined', async () => {
  const backend = await edge.backend((request, reply) => reply.end(request.url))
  const host = await edge.sandbox({ port: backend.port })
  const line = (path: string, last = false) =>
    `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${last ? 'Connection: close\r\n' : ''}\r\n`
  const paths = Array.from({ length: 200 }, (_, n) => `/${n}`)
  const answer = await edge.raw(paths.map((path, n) => line(path, n === 199)).join(''))
  expect([...answer.matchAll(/\r\n\r\n(\/\d+)/g)].map((match) => match[1])).toEqual(paths)
  const sources = new Set(backend.requests.map((request) => request.socket.remotePort))
  expect(sources.size).toBe(1)
})

test('a pooled connection that the program has closed causes no error', async () => {
  const backend = await edge.backend(say('fine'))
  const host = await edge.sandbox({ port: backend.port })
  for (let round = 0; round < 20; round++) {
    expect((await ask(host)).status).toBe(200)
    backend.server.closeIdleConnections()
  }
  expect((await ask(host, { method: 'POST', body: 'x' })).status).toBe(200)
})

test('a thousand concurrent requests are all answered', async () => {
  const backend = await edge.backend((request, reply) => setTimeout(() => reply.end(request.url), 20))
  const host = await edge.sandbox({ port: backend.port })
  const replies = await Promise.all(Array.from({ length: 1000 }, (_, n) => ask(host, { path: `/${n}` })))
  expect(replies.every((reply, n) => reply.status === 200 && reply.body.toString() === `/${n}`)).toBe(true)
})

test('responses without a body, interim responses and HTTP/1.0 are forwarded correctly', async () => {
  const backend = await edge.backend((request, reply) => {
    if (request.url === '/204') reply.writeHead(204).end()
    else if (request.url === '/304') reply.writeHead(304, { etag: '"x"' }).end()
    else if (request.url === '/early') {
      reply.writeEarlyHints({ link: '</a>; rel=preload' })
      reply.end('late')
    } else if (request.url === '/trailer') {
      reply.writeHead(200, { trailer: 'x-sum' })
      reply.write('body')
      reply.addTrailers({ 'x-sum': '7' })
      reply.end()
    } else {
      reply.write('a')
      reply.end('b')
    }
  })
  const host = await edge.sandbox({ port: backend.port })
  const agent = { headers: { connection: 'keep-alive' } }
  expect((await ask(host, { path: '/204', ...agent })).status).toBe(204)
  expect((await ask(host, { path: '/304', ...agent })).headers.etag).toBe('"x"')
  const head = await ask(host, { method: 'HEAD' })
  expect([head.status, head.body.length]).toEqual([200, 0])
  const early = await edge.raw(`GET /early HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
  expect(early).toMatch(/^HTTP\/1.1 103 [\s\S]*\r\n\r\nHTTP\/1.1 200 /)
  const trailer = await edge.raw(`GET /trailer HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
  expect(trailer.toLowerCase()).toMatch(/\r\n0\r\nx-sum: 7\r\n\r\n$/)
  const old = await edge.raw(`GET / HTTP/1.0\r\nHost: ${host}\r\n\r\n`)
  expect(old).toMatch(/Connection: close\r\n[\s\S]*\r\n\r\nab$/)
  expect(old.toLowerCase()).not.toContain('chunked')
})

test('a client that sends Expect: 100-continue gets 100 Continue', async () => {
  const backend = await edge.backend(async (request, reply) => reply.end(await whole(request)))
  const host = await edge.sandbox({ port: backend.port })
  const socket = edge.connect()
  socket.write(
    `PUT / HTTP/1.1\r\nHost: ${host}\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n`,
  )
  expect(String((await once(socket, 'data'))[0])).toMatch(/^HTTP\/1.1 100 /)
  socket.write('body')
  expect((await whole(socket)).toString()).toMatch(/^HTTP\/1.1 200 [\s\S]*\r\n\r\nbody$/)
})

test('a refusal reaches a client that is still sending', async () => {
  const host = await edge.sandbox({ auth: 'sprite' })
  const reply = await ask(host, { method: 'POST', body: randomBytes(2_000_000) })
  expect(reply.status).toBe(401)
})

const get = (host: string) => `GET /smuggled HTTP/1.1\r\nHost: ${host}\r\n\r\n`

test.each<[string, number, (host: string) => string]>([
  ['two lengths', 400, (host) => `Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello${get(host)}`],
  ['a list of lengths', 400, () => 'Content-Length: 5, 5\r\n\r\nhello'],
  ['a signed length', 400, () => 'Content-Length: +5\r\n\r\nhello'],
  [
    'a length before chunks',
    400,
    (host) => `Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${get(host)}`,
  ],
  [
    'chunks before a length',
    400,
    (host) => `Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n${get(host)}`,
  ],
  [
    'a repeated Transfer-Encoding',
    400,
    () => 'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  ],
  ['an unknown encoding', 501, () => 'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n'],
  ['chunks inside another encoding', 501, () => 'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n'],
  ['a space before the colon', 400, () => 'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n'],
  ['a folded line', 400, () => 'X: a\r\n b\r\n\r\n'],
  ['a line feed alone', 400, () => 'X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'],
  ['a carriage return alone', 400, () => 'X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'],
  ['a zero byte', 400, () => 'X: a\0b\r\n\r\n'],
  ['a line without a colon', 400, () => 'nonsense\r\n\r\n'],
  ['a second host', 400, () => 'Host: other\r\n\r\n'],
  ['an invalid chunk size', 400, () => 'Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n'],
  ['a chunk size with a sign', 400, () => 'Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n'],
  ['a chunk that is too long', 400, () => 'Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n'],
  ['a chunk line that ends too early', 400, () => 'Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n'],
  ['a huge chunk size', 400, () => `Transfer-Encoding: chunked\r\n\r\n${'f'.repeat(17)}\r\n`],
])('a request with %s is rejected', async (_name, status, rest) => {
  const backend = await edge.backend((request, reply) => {
    request.resume()
    request.on('error', () => {})
    request.on('end', () => reply.end('ok'))
  })
  const host = await edge.sandbox({ port: backend.port })
  const answer = await edge.raw(`POST / HTTP/1.1\r\nHost: ${host}\r\n${rest(host)}`)
  expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${status} `))
  expect(backend.requests.filter(({ url }) => url === '/smuggled')).toEqual([])
})

test.each([
  ['GET / HTTP/2.0\r\nHost: x\r\n\r\n', 505],
  ['PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 505],
  ['CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n', 405],
  ['GET / HTTP/1.1\r\n\r\n', 400],
  ['GET /\r\n\r\n', 400],
  ['GET  / HTTP/1.1\r\nHost: x\r\n\r\n', 400],
  ['GET / HTTP/1.1\r\nHost: a b\r\n\r\n', 400],
  ['\x16\x03\x01\x02\x00\x01\x00\r\n\r\n', 400],
  ['GET / HTTP/1.1\nHost: x\n\n', 400],
  [`GET / HTTP/1.1\r\nHost: x\r\nX: ${'a'.repeat(40_000)}\r\n\r\n`, 431],
  [`GET / HTTP/1.1\r\nHost: x\r\n${'X: a\r\n'.repeat(300)}\r\n`, 431],
])('a malformed request is rejected: %#', async (text, status) => {
  expect(await edge.raw(text)).toMatch(new RegExp(`^HTTP/1.1 ${status} `))
})

test('for any input, the program gets only requests that the edge has written', async () => {
  const backend = await edge.backend((request, reply) => {
    request.resume()
    request.on('error', () => {})
    request.on('end', () => reply.end('ok'))
  })
  const host = await edge.sandbox({ port: backend.port })
  const hidden = `GET /hidden HTTP/1.1\r\nHost: ${host}\r\n\r\n`
  const end = fc.constantFrom('\r\n', '\r\n', '\r\n', '\n', '\r', '\r\n ', '\0\r\n', ' \r\n')
  const field = fc.constantFrom(
    `Content-Length: ${hidden.length}`,
    'Content-Length: 0',
    'Content-Length: 5',
    'content-length : 5',
    'Transfer-Encoding: chunked',
    'transfer-encoding:\tchunked',
    'Transfer-Encoding: identity',
    'Transfer_Encoding: chunked',
    'Connection: content-length',
    'Connection: transfer-encoding, close',
    'Upgrade: h2c',
    'Connection: Upgrade, HTTP2-Settings',
    'X: y',
    `X: ${hidden.slice(0, -4)}`,
  )
  const body = fc.array(
    fc.constantFrom(
      '0',
      '5',
      'hello',
      hidden,
      '\r\n',
      '\n',
      '0\r\n\r\n',
      `${hidden.length.toString(16)}\r\n`,
      ';x',
      'X: y\r\n',
    ),
    { maxLength: 8 },
  )
  const message = fc.record({
    method: fc.constantFrom('GET', 'POST', 'OPTIONS'),
    fields: fc.array(fc.tuple(field, end), { maxLength: 5 }),
    body,
  })
  await fc.assert(
    fc.asyncProperty(message, async ({ method, fields, body }) => {
      const head = fields.map(([text, lineEnd]) => text + lineEnd).join('')
      const socket = edge.connect()
      socket.write(`${method} / HTTP/1.1\r\nHost: ${host}\r\n${head}\r\n${body.join('')}`, 'latin1')
      // The edge sends nothing while it waits for the rest of a message, so this also ends by a timeout.
      await Promise.race([once(socket, 'data'), once(socket, 'close'), pause(25)])
      socket.destroy()
      const strangers = backend.requests.filter((request) => request.headers.via !== '1.1 berth')
      if (strangers.length > 0) throw new Error('a request passed that the edge did not write')
    }),
    { numRuns: 200 },
  )
  expect(backend.requests.length).toBeGreaterThan(5)
  expect(edge.errors).toEqual([])
})
