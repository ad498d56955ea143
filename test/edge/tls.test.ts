import { X509Certificate } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { request } from 'node:https'
import { connect as connectTcp, createServer as createTcpServer, type Socket } from 'node:net'
import { duplexPair } from 'node:stream'
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls'
import { expect, test } from 'vitest'
import { Certificates } from '../../src/edge/tls/certificate.ts'
import { seal } from '../../src/model/seal.ts'
import { useEdge } from '../support/edge.ts'
import { askHttp2, makePair, openHttp2 } from '../support/tls.ts'
import { until } from '../support/until.ts'

const secret = Buffer.alloc(32, 7)
const own = makePair('*.app.test')
const tls = { ...own, isRequired: false, certificates: { find: (name: string) => certificates.find(name) } }
const edge = useEdge({ waitTimeoutMs: 2_000, tls })
const certificates = new Certificates(edge.table.apps, secret, (error) => edge.errors.push(error))

const say = (text: string) => (_request: IncomingMessage, reply: ServerResponse) => void reply.end(text)

async function ask(host: string, path = '/', address = '127.0.0.1', port = edge.port) {
  const options = { host: address, port, path, servername: host, headers: { host }, rejectUnauthorized: false }
  const call = request({ ...options, agent: false }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  const certificate = new X509Certificate((reply.socket as TLSSocket).getPeerCertificate().raw)
  let body = ''
  for await (const chunk of reply) body += chunk
  return { status: reply.statusCode!, body, names: certificate.subjectAltName }
}

test('one port serves HTTP and HTTPS, and the program learns the protocol', async () => {
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => reply.end(JSON.stringify(request.headers)))
  const secure = await ask(`${app}.app.test`)
  expect(secure.names).toBe('DNS:*.app.test')
  expect(JSON.parse(secure.body)).toMatchObject({ 'x-forwarded-proto': 'https', 'x-forwarded-ssl': 'on' })
  const plain = await edge.raw(`GET / HTTP/1.1\r\nHost: ${app}.app.test\r\nConnection: close\r\n\r\n`)
  expect(plain).toContain('"x-forwarded-proto":"http"')
  expect(await edge.raw('\x16 nonsense\r\n\r\n')).not.toMatch(/^HTTP/)
})

test('a port that forces HTTPS redirects to the port of the edge', async () => {
  const app = await edge.app()
  const ports = [
    { port: 80, handlers: ['http'], force_https: true },
    { port: 443, handlers: ['tls', 'http'] },
  ]
  await edge.backendOf(app, say('safe'), { service: { ports } })
  const host = `${app}.app.test:${edge.port}`
  const answer = await edge.raw(`GET /x HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
  expect(answer).toMatch(new RegExp(`^HTTP/1.1 301 [\\s\\S]*\r\nLocation: https://${host}/x\r\n`))
  expect((await ask(`${app}.app.test`)).body).toBe('safe')
})

test('a custom host name uses its own certificate, and a new one takes effect at once', async () => {
  const app = await edge.app()
  await edge.backendOf(app, say('custom'))
  await edge.database.db.query(`insert into host (hostname, app_id) values ('www.owner.test', $1)`, [app])
  const put = async ({ cert, key }: { cert: string; key: string }) =>
    edge.database.db.query(
      `insert into certificate (hostname, app_id, source, fullchain, private_key, expires_at)
       values ('www.owner.test', $1, 'custom', $2, $3, now()) on conflict (hostname, source)
       do update set fullchain = excluded.fullchain, private_key = excluded.private_key`,
      [app, cert, seal(secret, Buffer.from(key))],
    )
  await put(makePair('www.owner.test'))
  await until(async () => (await ask('www.owner.test')).names === 'DNS:www.owner.test')
  expect((await ask('www.owner.test')).body).toBe('custom')
  await put(makePair('*.owner.test'))
  await until(async () => (await ask('www.owner.test')).names === 'DNS:*.owner.test')
  expect((await ask(`${app}.app.test`)).names).toBe('DNS:*.app.test')
})

test('HTTP/2 carries concurrent requests, bodies in both directions, and trailers', async () => {
  const app = await edge.app()
  await edge.backendOf(app, async (request, reply) => {
    reply.writeHead(200, { 'x-url': request.url, 'x-sum': request.headers['x-client'], trailer: 'x-end' })
    for await (const chunk of request) reply.write(chunk)
    reply.addTrailers({ 'x-end': 'yes' })
    reply.end()
  })
  const host = `${app}.app.test`
  const session = openHttp2(host, edge.port)
  const body = Buffer.alloc(200_000, 'abcdefg') // larger than the flow-control window, smaller than the limit for resending
  const replies = await Promise.all(
    Array.from({ length: 40 }, (_, n) =>
      askHttp2(
        session,
        { ':path': `/${n}`, ':method': n % 2 ? 'POST' : 'GET', 'x-client': 'c' },
        n % 2 ? body : undefined,
      ),
    ),
  )
  for (const [n, reply] of replies.entries()) {
    expect(reply.headers).toMatchObject({ ':status': 200, 'x-url': `/${n}`, 'x-sum': 'c', server: 'berth' })
    expect(reply.trailers).toMatchObject({ 'x-end': 'yes' })
    expect(reply.body.equals(n % 2 ? body : Buffer.alloc(0))).toBe(true)
  }
  expect((await askHttp2(session, { ':path': '/', ':authority': 'nobody.app.test' })).headers[':status']).toBe(404)
  session.close()
  await until(() => edge.table.apps.get(app)!.targets[0]!.load === 0)
})

test('the program notices an HTTP/2 request that the client resets', async () => {
  const app = await edge.app()
  const held: ServerResponse[] = []
  let closed = 0
  await edge.backendOf(app, (request, reply) => {
    reply.on('close', () => {
      closed += 1
    })
    if (request.url === '/stream') reply.write('first')
    held.push(reply)
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  for (const path of ['/silent', '/stream']) {
    const stream = session.request({ ':path': path })
    stream.on('error', () => {})
    const count = held.length
    await until(() => held.length > count)
    stream.close()
    await until(() => closed === count + 1)
  }
  await until(() => edge.table.apps.get(app)!.targets[0]!.load === 0)
  session.close()
})

test('HTTP/2 requests are replayed', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  await edge.backendOf(source, (request, reply) => {
    request.resume()
    reply.writeHead(200, { 'fly-replay': `app=${target}` }).end()
  })
  await edge.backendOf(target, async (request, reply) => {
    let text = ''
    for await (const chunk of request) text += chunk
    reply.end(`got ${text}`)
  })
  const session = openHttp2(`${source}.app.test`, edge.port)
  const reply = await askHttp2(session, { ':path': '/', ':method': 'POST' }, Buffer.from('this'))
  expect(String(reply.body)).toBe('got this')
  session.close()
})

async function listenEcho(): Promise<{ port: number; close(): void }> {
  const echo = createTcpServer((socket) => void socket.on('error', () => {}).pipe(socket))
  await new Promise<void>((resolve) => echo.listen(0, '127.0.0.1', resolve))
  return { port: (echo.address() as { port: number }).port, close: () => void echo.close() }
}

async function echoes(socket: Socket): Promise<string> {
  socket.write('over and ')
  socket.end('out')
  let text = ''
  for await (const chunk of socket) text += chunk
  return text
}

test('bytes are relayed inside TLS, by address and by server name', async () => {
  const app = await edge.app({ ip: { ip: '127.0.8.1' } })
  const echo = await listenEcho()
  const port = await edge.listen('127.0.8.1')
  const ports = [
    { port, handlers: ['tls'] },
    { port: 443, handlers: ['tls'] },
  ]
  await edge.machine(app, { services: [{ internal_port: echo.port, ports }] })
  const shared = { servername: `${app}.app.test`, rejectUnauthorized: false }
  expect(await echoes(connect({ host: '127.0.8.1', port, ...shared }))).toBe('over and out')
  expect(await echoes(connect({ host: '127.0.0.1', port: edge.port, ...shared }))).toBe('over and out')
  echo.close()
})

test('extra ports of a shared address are routed by server name and accept TLS only', async () => {
  const port = await edge.listen('127.0.0.9')
  const [web, raw, other] = [await edge.app(), await edge.app(), await edge.app()]
  const echo = await listenEcho()
  await edge.backendOf(web, say('web'), { service: { ports: [{ port, handlers: ['tls', 'http'] }] } })
  await edge.machine(raw, { services: [{ internal_port: echo.port, ports: [{ port, handlers: ['tls'] }] }] })
  await edge.backendOf(other, say('other'), { service: { ports: [{ port, handlers: ['http'] }] } })
  const shared = { host: '127.0.0.9', port, rejectUnauthorized: false }
  expect((await ask(`${web}.app.test`, '/', '127.0.0.9', port)).body).toBe('web')
  expect(await echoes(connect({ ...shared, servername: `${raw}.app.test` }))).toBe('over and out')
  for (const servername of [`${other}.app.test`, 'nobody.app.test', ''])
    await expect(once(connect({ ...shared, servername }), 'secureConnect')).rejects.toThrow()
  const plain = connectTcp(port, '127.0.0.9')
  plain.end(`GET / HTTP/1.1\r\nHost: ${web}.app.test\r\n\r\n`)
  let text = ''
  plain.on('data', (chunk) => {
    text += chunk
  })
  plain.on('error', () => {})
  await until(() => plain.closed)
  expect(text).toBe('')
  echo.close()
})

interface Handshake {
  protocol: string | false | null
  version: string | null
}

/** Returns the negotiated version and protocol. */
async function shake(host: string, options: ConnectionOptions): Promise<Handshake> {
  const socket = connect({ servername: host, rejectUnauthorized: false, ...options })
  try {
    await once(socket, 'secureConnect')
    return { protocol: socket.alpnProtocol, version: socket.getProtocol() }
  } finally {
    socket.destroy()
  }
}

test('a port negotiates the protocols and versions that its owner configured, at dedicated and shared addresses', async () => {
  const rules = { alpn: ['other', 'http/1.1'], versions: ['TLSv1.2'] }
  const own = await edge.app({ ip: { ip: '127.0.8.3' } })
  const port = await edge.listen('127.0.8.3')
  const ports = [{ port, handlers: ['tls', 'http'], tls_options: rules }]
  await edge.backendOf(own, say('strict'), { service: { ports } })
  const shared = await edge.app()
  await edge.backendOf(shared, say('strict'), { service: { ports } })
  const plain = await edge.app()
  await edge.backendOf(plain, say('plain'))
  const ALPNProtocols = ['h2', 'http/1.1']
  const ofRules = { protocol: 'http/1.1', version: 'TLSv1.2' }
  expect(await shake('any.test', { host: '127.0.8.3', port, ALPNProtocols })).toEqual(ofRules)
  expect(await shake(`${shared}.app.test`, { port: edge.port, ALPNProtocols })).toEqual(ofRules)
  expect((await ask(`${shared}.app.test`)).body).toBe('strict')
  const usual = { protocol: 'h2', version: 'TLSv1.3' }
  expect(await shake(`${plain}.app.test`, { port: edge.port, ALPNProtocols })).toEqual(usual)
})

test('a client without a common version or protocol is rejected', async () => {
  const app = await edge.app()
  const rules = { alpn: ['mine'], versions: ['TLSv1.3'] }
  await edge.backendOf(app, say('new'), { service: { ports: [{ port: 443, handlers: ['tls'], tls_options: rules }] } })
  const shakeWith = (options: ConnectionOptions) => shake(`${app}.app.test`, { port: edge.port, ...options })
  await expect(shakeWith({ maxVersion: 'TLSv1.2' })).rejects.toThrow(/protocol version/)
  await expect(shakeWith({ ALPNProtocols: ['h2'] })).rejects.toThrow(/no application protocol/)
  expect(await shakeWith({ ALPNProtocols: ['mine'] })).toEqual({ protocol: 'mine', version: 'TLSv1.3' })
})

test('a ClientHello may arrive in pieces', async () => {
  const app = await edge.app()
  await edge.backendOf(app, say('whole'))
  const socket = edge.connect().setNoDelay()
  const [client, wire] = duplexPair()
  wire.once('data', async (hello: Buffer) => {
    for (let at = 0; at < hello.length; at += 100) {
      socket.write(hello.subarray(at, at + 100))
      await new Promise(setImmediate)
    }
    wire.pipe(socket)
  })
  socket.pipe(wire)
  const secured = connect({ socket: client, servername: `${app}.app.test`, rejectUnauthorized: false })
  secured.write(`GET / HTTP/1.1\r\nHost: ${app}.app.test\r\nConnection: close\r\n\r\n`)
  let text = ''
  for await (const chunk of secured) text += chunk
  expect(text).toMatch(/whole$/)
})

test('PostgreSQL clients can start TLS with an SSLRequest', async () => {
  const app = await edge.app({ ip: { ip: '127.0.8.2' } })
  const echo = await listenEcho()
  const port = await edge.listen('127.0.8.2')
  await edge.machine(app, { services: [{ internal_port: echo.port, ports: [{ port, handlers: ['pg_tls'] }] }] })
  const socket = connectTcp(port, '127.0.8.2')
  socket.write(Buffer.from([0, 0, 0, 8, 4, 210, 22, 47]))
  expect(String((await once(socket, 'data'))[0])).toBe('S')
  expect(await echoes(connect({ socket, rejectUnauthorized: false }))).toBe('over and out')
  echo.close()
})

test('no test caused an internal error', () => {
  expect(edge.errors).toEqual([])
})
