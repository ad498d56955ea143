import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type Http2Server, type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo, Socket } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import { useEdge } from '../support/edge.ts'
import { askHttp2, makePair, openHttp2 } from '../support/tls.ts'
import { until } from '../support/until.ts'

const tls = { ...makePair('*.app.test'), isRequired: false, certificates: { find: () => undefined } }
const edge = useEdge({ tls, waitTimeoutMs: 2_000 })
const options = { h2_backend: true }
const ports = [
  { port: 80, handlers: ['http'], http_options: options },
  { port: 443, handlers: ['tls', 'http'], http_options: options },
]
const opened: { server: Http2Server; sockets: Set<Socket> }[] = []

afterEach(async () => {
  for (const { server, sockets } of opened.splice(0)) {
    for (const socket of sockets) socket.destroy()
    await new Promise((resolve) => server.close(resolve))
  }
})

type Answer = (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => void

/** An app whose program speaks HTTP/2 and nothing else. */
async function makeApp(answer: Answer, settings = {}) {
  const server = createServer({ settings })
  const sockets = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => sockets.delete(socket))
  })
  server.on('sessionError', () => {})
  server.on('stream', (stream, headers) => {
    stream.on('error', () => {})
    answer(stream, headers)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  opened.push({ server, sockets })
  const app = await edge.app()
  const machine = await edge.machine(app, { port: (server.address() as AddressInfo).port, service: { ports } })
  return { app, machine, server, sockets }
}

const echo: Answer = (stream, headers) => {
  stream.respond({ ':status': 201, 'x-path': headers[':path'], 'set-cookie': ['a=1', 'b=2'] })
  stream.pipe(stream)
}

test('a program with HTTP/2 gets requests of both versions over one connection', async () => {
  const seen: IncomingHttpHeaders[] = []
  const { app, sockets } = await makeApp((stream, headers) => {
    seen.push(headers)
    echo(stream, headers)
  })
  const body = randomBytes(3_000_000)
  for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
    const reply = await edge.ask(app, { method: 'POST', path: '/x?y=1', body, headers })
    expect(reply).toMatchObject({ status: 201, headers: { 'x-path': '/x?y=1', 'set-cookie': ['a=1', 'b=2'] } })
    expect(reply.bytes.equals(body)).toBe(true)
  }
  expect(seen[0]).toMatchObject({
    ':method': 'POST',
    ':scheme': 'http',
    ':authority': `${app}.app.test`,
    te: 'trailers',
    'x-forwarded-for': '127.0.0.1',
    'content-length': String(body.length),
  })
  expect(Object.keys(seen[1]!)).not.toContain('transfer-encoding')
  const session = openHttp2(`${app}.app.test`, edge.port)
  const replies = await Promise.all(
    Array.from({ length: 50 }, (_, n) => {
      const given = { ':path': `/${n}`, ':method': 'POST' }
      return askHttp2(session, given, Buffer.from(`body ${n}`))
    }),
  )
  expect(replies.map((reply) => String(reply.body))).toEqual(replies.map((_, n) => `body ${n}`))
  session.close()
  expect(sockets.size).toBe(1)
  await until(() => edge.table.apps.get(app)!.targets[0]!.load === 0)
})

test('responses without a body are forwarded correctly', async () => {
  const { app } = await makeApp((stream, headers) => {
    const status = Number(headers[':path']!.slice(1))
    stream.respond(
      { ':status': status, ...(headers[':method'] === 'HEAD' && { 'content-length': '5' }) },
      { endStream: true },
    )
  })
  for (const status of [200, 204, 304, 404]) {
    const reply = await edge.ask(app, { path: `/${status}` })
    expect([reply.status, reply.body]).toEqual([status, ''])
  }
  const head = await edge.ask(app, { path: '/200', method: 'HEAD' })
  expect([head.status, head.headers['content-length']]).toEqual([200, '5'])
})

test('a bidirectional gRPC stream works, including trailers', async () => {
  const { app } = await makeApp((stream, headers) => {
    if (headers[':path'] === '/refused') {
      stream.respond({ ':status': 200, 'content-type': 'application/grpc', 'grpc-status': '12' }, { endStream: true })
      return
    }
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true })
    stream.write('hello')
    stream.on('data', (data) => stream.write(`got ${data}`))
    stream.on('end', () => stream.end())
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0', 'grpc-message': 'fine' }))
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  const call = session.request({ ':path': '/call', ':method': 'POST', te: 'trailers' }, { endStream: false })
  let text = ''
  let trailers: object = {}
  call.on('data', (data) => {
    text += data
  })
  call.on('trailers', (given) => {
    trailers = given
  })
  // The program sends first.
  await until(() => text === 'hello')
  for (const word of ['one', 'two']) {
    call.write(word)
    await until(() => text.endsWith(`got ${word}`))
  }
  call.end()
  await once(call, 'end')
  expect(trailers).toMatchObject({ 'grpc-status': '0', 'grpc-message': 'fine' })
  const refused = session.request({ ':path': '/refused', ':method': 'POST' })
  const [headers, flags] = await once(refused, 'response')
  expect(headers).toMatchObject({ 'grpc-status': '12' })
  expect(flags & 1).toBe(1) // END_STREAM on the head tells clients that no body follows
  session.close()
})

test('another connection is opened when one is full, and closing connections are not used', async () => {
  const held: ServerHttp2Stream[] = []
  const { app, server, sockets } = await makeApp((stream) => held.push(stream), { maxConcurrentStreams: 2 })
  const sessions: { close(): void }[] = []
  server.on('session', (session) => sessions.push(session))
  const answer = () => {
    for (const stream of held.splice(0)) {
      stream.respond({ ':status': 200 })
      stream.end('held')
    }
  }
  const first = edge.ask(app)
  await until(() => held.length === 1)
  const more = Array.from({ length: 4 }, () => edge.ask(app))
  await until(() => held.length === 5)
  expect(sockets.size).toBe(3)
  answer()
  for (const reply of await Promise.all([first, ...more])) expect(reply.body).toBe('held')
  for (const session of sessions.splice(0)) session.close()
  await until(() => sockets.size === 0)
  const last = edge.ask(app, { method: 'POST', body: 'x' })
  await until(() => held.length === 1)
  answer()
  expect((await last).body).toBe('held')
})

test('the program notices a client that disconnects before or during the response', async () => {
  const held: ServerHttp2Stream[] = []
  const { app } = await makeApp((stream) => held.push(stream))
  for (const hasBegun of [false, true]) {
    const socket = edge.connect()
    socket.write(`GET / HTTP/1.1\r\nHost: ${app}.app.test\r\n\r\n`)
    await until(() => held.length === 1)
    const [stream] = held.splice(0)
    if (hasBegun) {
      stream!.respond({ ':status': 200 })
      stream!.write('part')
      await once(socket, 'data')
    }
    socket.destroy()
    await until(() => stream!.destroyed)
  }
  await until(() => edge.table.apps.get(app)!.targets[0]!.load === 0)
})

test('a stream that the program resets causes a 502 or a truncated response', async () => {
  const { app } = await makeApp((stream, headers) => {
    if (headers[':path'] === '/begun') {
      stream.respond({ ':status': 200 })
      stream.write('part', () => stream.destroy(new Error('broken')))
    } else stream.close(headers[':path'] === '/silent' ? 0 : 2)
  })
  for (const path of ['/silent', '/loud']) {
    const reply = await edge.ask(app, { path, method: 'POST', body: 'x' })
    expect([reply.status, JSON.parse(reply.body).error]).toEqual([502, 'bad_gateway'])
  }
  await expect(edge.ask(app, { path: '/begun' })).rejects.toThrow('aborted')
})

test('a program that does not speak HTTP/2 causes a 502', async () => {
  const app = await edge.app()
  await edge.backendOf(app, (_request, reply) => void reply.end('one'), { service: { ports } })
  expect((await edge.ask(app)).status).toBe(502)
})

test('a program that accepts no streams causes a 502', async () => {
  const { app } = await makeApp(echo, { maxConcurrentStreams: 0 })
  expect((await edge.ask(app)).status).toBe(502)
})

test('requests are replayed, and a WebSocket reaches the program over HTTP/1', async () => {
  const { app } = await makeApp(echo)
  const front = await edge.app()
  await edge.backendOf(front, (_request, reply) => void reply.writeHead(200, { 'fly-replay': `app=${app}` }).end())
  expect((await edge.ask(front, { method: 'POST', body: 'over there' })).body).toBe('over there')
  const both = await edge.app()
  const backend = await edge.backendOf(both, (_request, reply) => void reply.end(), { service: { ports } })
  new WebSocketServer({ server: backend.server }).on('connection', (socket) => socket.send('hello'))
  const client = new WebSocket(`ws://127.0.0.1:${edge.port}/`, { headers: { host: `${both}.app.test` } })
  expect(String((await once(client, 'message'))[0])).toBe('hello')
  client.terminate()
})

test('connections to a deleted machine are closed', async () => {
  const { app, machine, sockets } = await makeApp(echo)
  await edge.ask(app)
  expect(sockets.size).toBe(1)
  await edge.database.db.query(`update machine set state = 'stopped' where id = $1`, [machine])
  await until(() => sockets.size === 0)
})

test('no test caused an internal error', async () => {
  expect(edge.errors).toEqual([])
})

test.each<[string, Record<string, string>, number[]]>([
  ['a host that differs from the authority', { host: 'other.app.test' }, [400]],
  ['a path with letters beyond Latin-1', { ':path': '/\u0120' }, [400, 0]],
  ['a path with a space', { ':path': '/a b' }, [400, 0]],
  ['a path with a line break', { ':path': '/a\r\nX: y' }, [400, 0]],
  ['a path with a fragment', { ':path': '/a#b' }, [400]],
  ['a path without a slash', { ':path': 'x' }, [400, 0]],
  ['an absolute path for another host', { ':path': 'http://other.app.test/' }, [400, 404, 0]],
  ['a method with a space', { ':method': 'GET /x HTTP/1.1' }, [400, 0]],
  ['a method with a line break', { ':method': 'GET\r\n' }, [400, 0]],
  ['CONNECT', { ':method': 'CONNECT' }, [400, 405, 0]],
  ['an authority with a space', { ':authority': 'a b' }, [400, 0]],
  ['an authority with a user', { ':authority': 'a@b' }, [400, 0]],
  ['an authority with a no-break space', { ':authority': '\xa0a.app.test' }, [400, 0]],
  ['a length that is no number', { 'content-length': '1e1' }, [400, 0]],
])('a request over HTTP/2 with %s is refused, and the edge goes on', async (_name, headers, statuses) => {
  const seen: string[] = []
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => {
    seen.push(request.url!)
    reply.end('ok')
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  const authority = `${app}.app.test`
  // Node.js refuses some of these itself, and closes the session or the stream for others: status 0.
  const status = await askHttp2(session, { ':path': '/', ':authority': authority, ...headers }).then(
    (reply) => reply.headers[':status'],
    () => 0,
  )
  session.destroy()
  expect(statuses).toContain(status)
  expect(seen).toEqual([])
  expect((await edge.ask(app)).body).toBe('ok')
  expect(edge.errors).toEqual([])
})

test.each(['b\r\nX-Invented: y', 'b\u010d\u010aX-Invented: y', 'b\0', 'b\x0b'])(
  'a header value over HTTP/2 cannot add a line: %j',
  async (value) => {
    const app = await edge.app()
    await edge.backendOf(app, (request, reply) => void reply.end(JSON.stringify(request.rawHeaders)))
    const session = openHttp2(`${app}.app.test`, edge.port)
    // The HTTP/2 implementation drops fields with control characters, or refuses the whole request.
    const text = await askHttp2(session, { ':path': '/', ':authority': `${app}.app.test`, 'x-a': value }).then(
      (reply) => reply.body.toString(),
      () => '[]',
    )
    session.destroy()
    expect(text).not.toContain('X-Invented')
    expect(text).not.toMatch(/\\u000|\\r|\\n/)
    expect((await edge.ask(app)).status).toBe(200)
  },
)
