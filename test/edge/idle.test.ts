import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { connect, type Socket } from 'node:net'
import { expect, test } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import { useEdge } from '../support/edge.ts'
import { makePair, openHttp2 } from '../support/tls.ts'
import { until } from '../support/until.ts'

const tls = { ...makePair('*.app.test'), isRequired: false, certificates: { find: () => undefined } }
const edge = useEdge({ tls, waitTimeoutMs: 30_000 })

type Answer = (request: IncomingMessage, reply: ServerResponse) => void

function portsOf(options: object) {
  return [
    { port: 80, handlers: ['http'], http_options: options },
    { port: 443, handlers: ['tls', 'http'], http_options: options },
  ]
}

async function makeApp(options: object, answer: Answer) {
  const app = await edge.app()
  return { app, ...(await edge.backendOf(app, answer, { service: { ports: portsOf(options) } })) }
}

const say =
  (text: string): Answer =>
  (_request, reply) =>
    void reply.end(text)
const isGone = (socket: Socket) => socket.destroyed || socket.readableEnded

/** Collects everything that the edge sends. */
function read(socket: Socket): { text: string } {
  const seen = { text: '' }
  socket.on('data', (data) => {
    seen.text += data
  })
  return seen
}

test('an idle WebSocket is closed, and an active one is not', async () => {
  const { app, server } = await makeApp({ idle_timeout: 2 }, say('http'))
  new WebSocketServer({ server }).on('connection', (socket) => {
    socket.on('message', (text) => socket.send(String(text)))
  })
  const open = async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${edge.port}/`, { headers: { host: `${app}.app.test` } })
    socket.on('error', () => {})
    await once(socket, 'open')
    return socket
  }
  const [quiet, busy] = [await open(), await open()]
  let echoes = 0
  busy.on('message', () => {
    echoes += 1
  })
  const timer = setInterval(() => busy.send('still here'), 100)
  try {
    await until(() => quiet.readyState === WebSocket.CLOSED)
    expect(busy.readyState).toBe(WebSocket.OPEN)
    const before = echoes
    await until(() => echoes > before + 30)
    expect(busy.readyState).toBe(WebSocket.OPEN)
  } finally {
    clearInterval(timer)
    busy.terminate()
  }
})

test('a request whose response stalls is aborted, and the program notices', async () => {
  let closed = 0
  const { app } = await makeApp({ idle_timeout: 1 }, (request, reply) => {
    reply.on('close', () => {
      closed += 1
    })
    if (request.url === '/part') reply.write('part')
  })
  await expect(edge.ask(app)).rejects.toThrow('socket hang up')
  await expect(edge.ask(app, { path: '/part' })).rejects.toThrow('aborted')
  await until(() => closed === 2)
})

test('the idle timeout of the port also applies between requests', async () => {
  const { app } = await makeApp({ idle_timeout: 1 }, say('short'))
  const usual = await makeApp({}, say('usual'))
  const open = async (name: string, text: string) => {
    const socket = edge.connect()
    const seen = read(socket)
    socket.write(`GET / HTTP/1.1\r\nHost: ${name}.app.test\r\n\r\n`)
    await until(() => seen.text.endsWith(text))
    return socket
  }
  const [long, short] = [await open(usual.app, 'usual'), await open(app, 'short')]
  await until(() => isGone(short))
  expect(isGone(long)).toBe(false)
})

test('an active stream is not closed by the idle timeout', async () => {
  const { app } = await makeApp({ idle_timeout: 2 }, (_request, reply) => {
    let count = 0
    const timer = setInterval(() => {
      count += 1
      reply.write('.')
      if (count === 40) reply.end()
    }, 100)
    reply.on('close', () => clearInterval(timer))
  })
  expect((await edge.ask(app)).body).toBe('.'.repeat(40))
})

test('the start of a machine does not count as idle time', async () => {
  const app = await edge.app()
  const service = { ports: portsOf({ idle_timeout: 1 }) }
  const { id } = await edge.backendOf(app, say('awake'), { state: 'starting', service })
  const began = Date.now()
  const asked = edge.ask(app)
  await until(() => Date.now() - began > 3_000)
  await edge.database.db.query(`update machine set state = 'started' where id = $1`, [id])
  expect((await asked).body).toBe('awake')
})

test('idle HTTP/2 streams and sessions are closed', async () => {
  let closed = 0
  const { app } = await makeApp({ idle_timeout: 1 }, (_request, reply) => {
    reply.on('close', () => {
      closed += 1
    })
    reply.write('part')
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  const stream = session.request({ ':path': '/' })
  stream.on('error', () => {})
  stream.resume()
  await until(() => stream.destroyed)
  expect(stream.rstCode).not.toBe(0)
  await until(() => closed === 1 && session.destroyed)
})

test('the head timeout of the port applies once the Host field has arrived', async () => {
  const { app, requests } = await makeApp({ headers_read_timeout: 1 }, say('here'))
  const usual = await makeApp({}, say('here'))
  const begin = (host: string) => {
    const socket = edge.connect()
    const seen = read(socket)
    socket.write(`GET / HTTP/1.1\r\nX-First: 1\r\nhost:${host}\r\nX-Slow: `)
    return { socket, seen }
  }
  const [short, long] = [begin(`${app}.app.test:80`), begin(`${usual.app}.app.test`)]
  await until(() => isGone(short.socket), 9) // the default is ten seconds
  expect(short.seen.text).toMatch(/^HTTP\/1.1 408 /)
  expect(requests).toEqual([])
  expect(isGone(long.socket)).toBe(false)
  long.socket.write('no\r\n\r\n')
  await until(() => long.seen.text.endsWith('here'))
})

test('a later request on a connection has no more time for its head than the first one', async () => {
  const { app, requests } = await makeApp({ headers_read_timeout: 1 }, say('here'))
  const socket = edge.connect()
  const seen = read(socket)
  socket.write(`GET / HTTP/1.1\r\nHost: ${app}.app.test\r\n\r\n`)
  await until(() => seen.text.endsWith('here'))
  socket.write(`GET / HTTP/1.1\r\nHost: ${app}.app.test\r\nX-Slow: `)
  const timer = setInterval(() => socket.writable && socket.write('a'), 100)
  try {
    await until(() => isGone(socket), 9) // the default is ten seconds
  } finally {
    clearInterval(timer)
  }
  expect(seen.text).toMatch(/here.*HTTP\/1.1 408 /s)
  expect(requests).toHaveLength(1)
})

test('at a dedicated address the timeouts of the app apply from the first byte', async () => {
  const app = await edge.app({ ip: { ip: '127.0.8.5' } })
  const port = await edge.listen('127.0.8.5')
  const ports = [{ port, handlers: ['http'], http_options: { headers_read_timeout: 1 } }]
  await edge.backendOf(app, say('here'), { service: { ports } })
  const socket = connect(port, '127.0.8.5')
  const seen = read(socket)
  socket.write('G')
  await until(() => isGone(socket), 9)
  expect(seen.text).toMatch(/^HTTP\/1.1 408 /)
  socket.destroy()
})

test('no test caused an internal error', () => {
  expect(edge.errors).toEqual([])
})
