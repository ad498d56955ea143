import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http'
import { brotliDecompressSync, createBrotliDecompress, createGunzip, gunzipSync } from 'node:zlib'
import { expect, test } from 'vitest'
import { useEdge } from '../support/edge.ts'
import { askHttp2, makePair, openHttp2 } from '../support/tls.ts'
import { until } from '../support/until.ts'

const tls = { ...makePair('*.app.test'), isRequired: false, certificates: { find: () => undefined } }
const edge = useEdge({ tls })
const ports = (options: object) => [
  { port: 80, handlers: ['http'], http_options: options },
  { port: 443, handlers: ['tls', 'http'], http_options: options },
]
const page = Buffer.from('<p>a page of some length</p>\n'.repeat(500))
const decode = { gzip: gunzipSync, br: brotliDecompressSync }
const encodings = ['gzip', 'br'] as const

type Answer = (request: IncomingMessage, reply: ServerResponse) => void

async function makeApp(answer: Answer, options: object = { compress: true }) {
  const app = await edge.app()
  return { app, ...(await edge.backendOf(app, answer, { service: { ports: ports(options) } })) }
}

const sendPage: Answer = (_request, reply) => {
  reply.writeHead(200, { 'content-type': 'text/html', 'content-length': page.length, etag: '"one"' })
  reply.end(page)
}

test('a response is compressed for clients that accept it', async () => {
  const { app } = await makeApp(sendPage)
  for (const encoding of encodings) {
    const reply = await edge.ask(app, { headers: { 'accept-encoding': encoding } })
    expect(reply.headers).toMatchObject({
      'content-encoding': encoding,
      'transfer-encoding': 'chunked',
      vary: 'Accept-Encoding',
      etag: 'W/"one"',
    })
    expect(reply.headers['content-length']).toBeUndefined()
    expect(reply.bytes.length).toBeLessThan(page.length / 10)
    expect(decode[encoding](reply.bytes).equals(page)).toBe(true)
  }
  const plain = await edge.ask(app)
  expect(plain.headers).toMatchObject({ 'content-length': String(page.length), vary: 'Accept-Encoding', etag: '"one"' })
  expect(plain.bytes.equals(page)).toBe(true)
  const head = await edge.ask(app, { method: 'HEAD', headers: { 'accept-encoding': 'gzip' } })
  expect(head.headers).toMatchObject({ 'content-length': String(page.length) })
  await until(() => edge.encoders.open === 0)
})

test('nothing is compressed on a port without compression, or that sets Content-Encoding itself', async () => {
  const headers = { 'accept-encoding': 'gzip' }
  for (const options of [
    {},
    { compress: false },
    { compress: true, response: { headers: { 'content-encoding': false } } },
  ]) {
    const { app } = await makeApp(sendPage, options)
    const reply = await edge.ask(app, { headers })
    expect([reply.bytes.equals(page), reply.headers['content-encoding']]).toEqual([true, undefined])
  }
})

test('responses without a length and responses to HTTP/1.0 clients are complete', async () => {
  const { app } = await makeApp((_request, reply) => {
    reply.shouldKeepAlive = false
    reply.useChunkedEncodingByDefault = false
    reply.writeHead(200, { 'content-type': 'text/plain' })
    reply.write(page)
    reply.end(page)
  })
  const both = Buffer.concat([page, page])
  const reply = await edge.ask(app, { headers: { 'accept-encoding': 'gzip' } })
  expect(gunzipSync(reply.bytes).equals(both)).toBe(true)
  const old = await edge.raw(`GET / HTTP/1.0\r\nHost: ${app}.app.test\r\nAccept-Encoding: gzip\r\n\r\n`)
  const [head, ...body] = old.split('\r\n\r\n')
  expect(head).not.toContain('Transfer-Encoding')
  expect(gunzipSync(Buffer.from(body.join('\r\n\r\n'), 'latin1')).equals(both)).toBe(true)
})

test('several requests use one connection, also when pipelined', async () => {
  const { app, requests } = await makeApp((request, reply) => {
    reply.writeHead(200, { 'content-type': 'text/plain', trailer: 'x-end' })
    reply.write(`${request.url} ${page}`)
    reply.addTrailers({ 'x-end': 'yes' })
    reply.end()
  })
  const one = (path: string, more = '') =>
    `GET ${path} HTTP/1.1\r\nHost: ${app}.app.test\r\nAccept-Encoding: gzip\r\n${more}\r\n`
  const text = await edge.raw(`${one('/1')}${one('/2')}${one('/3', 'Connection: close\r\n')}`)
  expect(text.split('HTTP/1.1 200').length - 1).toBe(3)
  expect(text.split('0\r\nx-end: yes\r\n\r\n').length - 1).toBe(3)
  expect(requests.map(({ url }) => url)).toEqual(['/1', '/2', '/3'])
  // The upstream connection is reused as well.
  expect(new Set(requests.map(({ socket }) => socket)).size).toBe(1)
})

test.each(encodings)('a stream is flushed piece by piece in %s', async (encoding) => {
  let stream: ServerResponse | undefined
  const { app } = await makeApp((_request, reply) => {
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    stream = reply
    reply.write('data: 0\n\n')
  })
  const headers = { host: `${app}.app.test`, 'accept-encoding': encoding }
  const call = httpRequest({ host: '127.0.0.1', port: edge.port, agent: false, headers }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  let text = ''
  reply.pipe(encoding === 'gzip' ? createGunzip() : createBrotliDecompress()).on('data', (data) => {
    text += data
  })
  for (let event = 1; event < 5; event++) {
    await until(() => text.endsWith(`data: ${event - 1}\n\n`))
    stream!.write(`data: ${event}\n\n`)
  }
  let isClosed = false
  stream!.on('close', () => {
    isClosed = true
  })
  call.destroy()
  await until(() => isClosed && edge.encoders.open === 0)
})

test.each(encodings)(
  'a client that reads slowly gets a complete large response in %s, and the program is slowed down',
  async (encoding) => {
    const noise = Buffer.from(
      Array.from({ length: 400_000 }, (_, n) => `${Math.imul(n, 2_654_435_761) >>> 0}\n`).join(''),
    )
    let sent = 0
    const { app } = await makeApp(async (_request, reply) => {
      reply.writeHead(200, { 'content-type': 'text/plain' })
      for (let round = 0; round < 8; round++) {
        sent = round
        if (!reply.write(noise)) await once(reply, 'drain')
      }
      reply.end()
    })
    const headers = { host: `${app}.app.test`, 'accept-encoding': encoding }
    const call = httpRequest({ host: '127.0.0.1', port: edge.port, agent: false, headers }).end()
    const [reply] = (await once(call, 'response')) as [IncomingMessage]
    await until(() => sent > 0)
    const decoded = reply.pipe(encoding === 'gzip' ? createGunzip() : createBrotliDecompress())
    let length = 0
    let isSame = true
    for await (const chunk of decoded as AsyncIterable<Buffer>) {
      for (let at = 0; at < chunk.length; ) {
        const from = (length + at) % noise.length
        const size = Math.min(chunk.length - at, noise.length - from)
        isSame &&= noise.subarray(from, from + size).equals(chunk.subarray(at, at + size))
        at += size
      }
      length += chunk.length
    }
    expect([isSame, length]).toEqual([true, noise.length * 8])
    await until(() => edge.encoders.open === 0)
  },
)

test('a truncated response is not completed', async () => {
  const { app } = await makeApp((_request, reply) => {
    reply.writeHead(200, { 'content-type': 'text/plain', 'content-length': page.length })
    reply.write(page.subarray(0, 5_000), () => reply.destroy())
  })
  await expect(edge.ask(app, { headers: { 'accept-encoding': 'gzip' } })).rejects.toThrow('aborted')
  await until(() => edge.encoders.open === 0)
})

test('responses above the encoder limit are not compressed', async () => {
  const { app } = await makeApp(sendPage)
  edge.encoders.open += edge.encoders.max
  try {
    const reply = await edge.ask(app, { headers: { 'accept-encoding': 'gzip' } })
    expect(reply.bytes.equals(page)).toBe(true)
  } finally {
    edge.encoders.open -= edge.encoders.max
  }
})

test('responses to HTTP/2 clients are compressed', async () => {
  const { app } = await makeApp(sendPage)
  const session = openHttp2(`${app}.app.test`, edge.port)
  for (const encoding of encodings) {
    const reply = await askHttp2(session, { ':path': '/', 'accept-encoding': encoding })
    expect(reply.headers).toMatchObject({ 'content-encoding': encoding, vary: 'Accept-Encoding', etag: 'W/"one"' })
    expect(decode[encoding](reply.body).equals(page)).toBe(true)
  }
  session.close()
})

test('no test caused an internal error', () => {
  expect(edge.errors).toEqual([])
})
