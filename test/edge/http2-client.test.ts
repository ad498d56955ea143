import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { constants } from 'node:http2'
import { expect, test } from 'vitest'
import { useEdge } from '../support/edge.ts'
import { askHttp2, makePair, openHttp2 } from '../support/tls.ts'
import { until } from '../support/until.ts'

const tls = { ...makePair('*.app.test'), isRequired: false, certificates: { find: () => undefined } }
const edge = useEdge({ tls, waitTimeoutMs: 2_000 })

interface Upload {
  bytes: number
  /** How the program saw the end of the body. */
  end?: 'complete' | 'aborted'
}

/** A program that notes how much of each body it got, and whether all of it. */
async function makeUploads(): Promise<{ app: string; uploads: Upload[] }> {
  const uploads: Upload[] = []
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => {
    const upload: Upload = { bytes: 0 }
    uploads.push(upload)
    request.on('data', (chunk) => {
      upload.bytes += chunk.length
    })
    request.on('end', () => {
      upload.end = 'complete'
      reply.end('stored')
    })
    request.on('error', () => {
      upload.end ??= 'aborted'
    })
  })
  return { app, uploads }
}

const begin = { ':method': 'PUT', ':path': '/file' }

test.each<[string, Record<string, string>]>([
  ['of unknown length', {}],
  ['with a length', { 'content-length': '1000' }],
])('an upload %s that the client aborts is incomplete for the program', async (_name, headers) => {
  for (const how of ['reset', 'session', 'connection']) {
    const { app, uploads } = await makeUploads()
    const session = openHttp2(`${app}.app.test`, edge.port)
    const stream = session.request({ ...begin, ...headers }, { endStream: false })
    stream.on('error', () => {})
    stream.write('part')
    await until(() => uploads[0]?.bytes === 4)
    // `close` would end the body before it resets the stream.
    if (how === 'reset') stream.destroy(new Error('cancelled'))
    else if (how === 'session') session.destroy()
    else session.socket.destroy()
    await until(() => uploads[0]!.end !== undefined)
    expect([how, uploads[0]]).toEqual([how, { bytes: 4, end: 'aborted' }])
    session.destroy()
  }
  expect(edge.errors).toEqual([])
})

test('a whole upload of unknown length reaches the program', async () => {
  const { app, uploads } = await makeUploads()
  const session = openHttp2(`${app}.app.test`, edge.port)
  const body = randomBytes(3_000_000)
  expect(String((await askHttp2(session, begin, body)).body)).toBe('stored')
  expect(uploads).toEqual([{ bytes: body.length, end: 'complete' }])
  session.close()
})

test('trailers of a request reach the program, except those that could pass for fields of the head', async () => {
  const seen: IncomingMessage[] = []
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => {
    seen.push(request)
    request.resume().on('end', () => reply.end('ok'))
  })
  const trailers = {
    'x-checksum': 'abc',
    'fly-client-ip': '1.2.3.4',
    'x-forwarded-for': '1.2.3.4',
    x_forwarded_for: '1.2.3.4',
    forwarded: 'for=1.2.3.4',
    authorization: 'Bearer x',
    cookie: 'a=b',
    host: 'other.test',
    'content-type': 'text/html',
  }
  const session = openHttp2(`${app}.app.test`, edge.port)
  const stream = session.request(begin, { endStream: false, waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers({ ...trailers, host: undefined }))
  stream.end('body')
  await once(stream, 'response')
  session.close()
  const lines = Object.entries(trailers).map(([name, value]) => `${name}: ${value}\r\n`)
  const head = `POST / HTTP/1.1\r\nHost: ${app}.app.test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n`
  await edge.raw(`${head}4\r\nbody\r\n0\r\n${lines.join('')}\r\n`)
  for (const request of seen) expect(request.trailers).toEqual({ 'x-checksum': 'abc' })
  expect(seen.length).toBe(2)
})

type Answer = (reply: ServerResponse) => void

const early: Answer = (reply) => reply.writeEarlyHints({ link: '</a>; rel=preload' })
const whole: Answer = (reply) => void reply.end('fine')
const part: Answer = (reply) => void reply.write('part')
const trailing: Answer = (reply) => {
  reply.writeHead(200, { trailer: 'x-sum' })
  reply.write('part')
  reply.addTrailers({ 'x-sum': '1' })
  reply.end()
}
const cut: Answer = (reply) => void reply.socket!.destroy()

test.each<[string, Answer]>([
  ['early hints', early],
  ['a response', whole],
  ['a part of a response', part],
  ['trailers', trailing],
  ['the end of its connection', cut],
])('%s for a stream that the client has just reset ends nothing else', async (_name, answer) => {
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => {
    request.on('error', () => {})
    if (request.url === '/other') reply.end('other')
    else answer(reply)
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  // Resets and answers cross in different orders.
  for (let round = 0; round < 150; round++) {
    const stream = session.request({ ':method': 'POST', ':path': '/' }, { endStream: round % 2 === 0 })
    stream.on('error', () => {})
    const code = round % 3 === 0 ? constants.NGHTTP2_NO_ERROR : constants.NGHTTP2_CANCEL
    if (round % 5 === 0) setImmediate(() => stream.close(code))
    else setTimeout(() => stream.close(code), round % 5)
    if (round % 10 === 9) await once(stream, 'close')
  }
  const reply = await askHttp2(session, { ':path': '/other' })
  expect(String(reply.body)).toBe('other')
  session.destroy()
  expect((await edge.ask(app, { path: '/other' })).body).toBe('other')
  expect(edge.errors).toEqual([])
})

test.each<[string, Answer]>([
  ['early hints', early],
  ['a response', whole],
  ['the end of its connection', cut],
])('%s for an upload that was reset before the program read it ends nothing else', async (_name, answer) => {
  const app = await edge.app()
  const held: ServerResponse[] = []
  await edge.backendOf(app, (request, reply) => {
    request.on('error', () => {})
    if (request.url === '/other') reply.end('other')
    else held.push(reply)
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  const stream = session.request(begin, { endStream: false })
  stream.on('error', () => {})
  // More than the sockets between the edge and the program hold, so that the edge keeps a part of it.
  stream.write(randomBytes(4_000_000))
  await until(() => held.length === 1)
  stream.destroy(new Error('cancelled'))
  // The edge has read the reset when it answers a later request of the same connection.
  await askHttp2(session, { ':path': '/other' })
  answer(held[0]!)
  expect(String((await askHttp2(session, { ':path': '/other' })).body)).toBe('other')
  session.destroy()
  expect(edge.errors).toEqual([])
})

test.each([
  [204, 'body'],
  [205, 'body'],
  [304, 'body'],
  [199, ''],
  [600, ''],
  [999, ''],
])('status %i of a program with the body "%s" does not end the connection', async (status, body) => {
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => {
    if (request.url === '/other') reply.end('other')
    else request.socket.end(`HTTP/1.1 ${status} x\r\nContent-Length: ${body.length}\r\n\r\n${body}`)
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  const stream = session.request({ ':path': '/' })
  stream.on('error', () => {}).resume()
  await until(() => stream.destroyed)
  expect(String((await askHttp2(session, { ':path': '/other' })).body)).toBe('other')
  session.destroy()
})

test('a single upload gets a window of megabytes, and many uploads share as much', async () => {
  const app = await edge.app()
  const held: IncomingMessage[] = []
  await edge.backendOf(app, (request, reply) => {
    if (request.url === '/quick') reply.end('quick')
    else held.push(request)
  })
  const session = openHttp2(`${app}.app.test`, edge.port)
  await once(session, 'remoteSettings')
  const isWide = () => (session.remoteSettings.initialWindowSize ?? 0) >= 2_000_000
  expect(isWide()).toBe(true)
  await until(() => session.state.remoteWindowSize! >= 2_000_000)
  const uploads = Array.from({ length: 60 }, (_, n) => {
    const stream = session.request({ ...begin, ':path': `/${n}` }, { endStream: false })
    stream.on('error', () => {})
    return stream
  })
  await until(() => held.length === 60)
  await until(() => (session.remoteSettings.initialWindowSize ?? 0) < 500_000)
  for (const stream of uploads) stream.close()
  await until(async () => {
    await askHttp2(session, { ':path': '/quick', ':method': 'POST' }, Buffer.from('x'))
    return isWide()
  })
  expect(String((await askHttp2(session, { ':path': '/quick' })).body)).toBe('quick')
  session.destroy()
})
