import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer as createTcpServer, type Server } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { guardedHttp, OutboundError, type OutboundPolicy } from '../../../src/drivers/network/guarded-http.ts'
import { parseAllowedTarget } from '../../../src/drivers/network/outbound-address.ts'
import { outboundLookup } from '../../../src/drivers/network/outbound-lookup.ts'
import { loopbackPolicy } from '../../support/outbound.ts'

const open: Server[] = []
const clients: { close(): void }[] = []

afterEach(async () => {
  for (const client of clients.splice(0)) client.close()
  for (const server of open.splice(0)) {
    if ('closeAllConnections' in server) (server as ReturnType<typeof createServer>).closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
})

interface Target {
  host: string
  port: number
  requests: IncomingMessage[]
}

async function listen(answer: (request: IncomingMessage, response: ServerResponse) => void): Promise<Target> {
  const requests: IncomingMessage[] = []
  const server = createServer((request, response) => {
    requests.push(request)
    answer(request, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  open.push(server)
  const { port } = server.address() as AddressInfo
  return { host: `127.0.0.1:${port}`, port, requests }
}

function client(policy: Partial<OutboundPolicy> = {}, stallSeconds = 5) {
  const http = guardedHttp(loopbackPolicy(policy), { stallSeconds })
  clients.push(http)
  return http
}

const { signal } = new AbortController()
const redirect = (location: string) => (_: IncomingMessage, response: ServerResponse) =>
  void response.writeHead(302, { location }).end()

test('sends credentials only until the first redirect to another origin, also when it leads back', async () => {
  const home: { host?: string } = {}
  const other = await listen((_, response) => redirect(`http://${home.host}/back`)(_, response))
  const first = await listen((request, response) => {
    if (request.url === '/back') response.end('done')
    else redirect(request.url === '/start' ? '/same' : `http://${other.host}/away`)(request, response)
  })
  home.host = first.host
  const { message, url } = await client().send(new URL(`http://${first.host}/start`), {
    headers: { authorization: 'secret' },
    signal,
  })
  message.destroy()
  expect(url.pathname).toBe('/back')
  expect(first.requests.map(({ headers }) => headers.authorization)).toEqual(['secret', 'secret', undefined])
  expect(other.requests.map(({ headers }) => headers.authorization)).toEqual([undefined])
})

test('connects only to an address that was checked, whatever DNS says the next time', async () => {
  const connected: string[] = []
  const port = await listenOnTwo(connected)
  const answers = [['127.0.0.1'], ['127.0.0.2']]
  let asked = 0
  const lookup = async () => answers[Math.min(asked++, 1)]!
  const url = new URL(`https://rebinding.test:${port}/`)
  await expect(client({ lookup }).send(url, { signal })).rejects.toThrow(OutboundError)
  expect([asked, connected]).toEqual([1, ['127.0.0.1']])
  await expect(client({ lookup }).send(url, { signal })).rejects.toThrow(OutboundError)
  expect([asked, connected]).toEqual([2, ['127.0.0.1']])
})

/** Listens on the same port of two addresses, of which only the first is allowed. */
async function listenOnTwo(connected: string[]): Promise<number> {
  let port = 0
  for (const host of ['127.0.0.1', '127.0.0.2']) {
    const server = createTcpServer((socket) => {
      connected.push(host)
      socket
        .on('error', () => undefined)
        .resume()
        .end()
    })
    await new Promise<void>((resolve) => server.listen(port, host, resolve))
    open.push(server)
    port = (server.address() as AddressInfo).port
  }
  return port
}

test.each([
  [['127.0.0.1']],
  [['1.1.1.1', '127.0.0.1']],
  [['2606:4700::1', '::1']],
  [['fdaa:0:1::2']],
  [['100.64.0.2']],
  [[]],
])('refuses a name that resolves to %j', async (addresses) => {
  const http = client({ allowed: [], lookup: async () => addresses })
  await expect(http.send(new URL('https://name.test/'), { signal })).rejects.toThrow(OutboundError)
})

test('says the same about every failure, and tells the operator the reason', async () => {
  const reasons: string[] = []
  const policy = {
    allowed: [parseAllowedTarget('127.0.0.1')],
    onFailure: ({ reason }: { reason: string }) => reasons.push(reason),
    lookup: outboundLookup(['127.0.0.1:1']),
  }
  const silent = await listen(() => undefined)
  const breaking = await listen((request) => request.socket.destroy())
  const nonsense = createTcpServer((socket) =>
    socket
      .on('error', () => undefined)
      .resume()
      .end('220 mail.example.com ESMTP\r\n'),
  )
  await new Promise<void>((resolve) => nonsense.listen(0, '127.0.0.1', resolve))
  open.push(nonsense)
  const { port } = nonsense.address() as AddressInfo
  const endless = await listen((_, response) => response.writeHead(200, { 'x-long': 'x'.repeat(60_000) }).end())
  const urls = [
    `http://${silent.host}/`,
    `http://${breaking.host}/`,
    `http://127.0.0.1:${port}/`,
    `https://${silent.host}/`,
    `http://${endless.host}/`,
    'http://127.0.0.1:1/',
    'http://127.0.0.2/',
    'https://10.0.0.1/',
    'https://no-such-name.test/',
    'http://example.com/',
    'http://user:password@127.0.0.1/',
    'ftp://127.0.0.1/',
  ]
  const messages = new Set<string>()
  for (const url of urls) {
    const error = await client(policy, 0.3)
      .send(new URL(url), { signal })
      .catch((caught: Error) => caught)
    expect(error).toBeInstanceOf(OutboundError)
    messages.add((error as Error).message)
  }
  expect([...messages]).toEqual(['The host cannot be reached'])
  expect(reasons.length).toBe(urls.length)
  expect(new Set(reasons).size).toBeGreaterThan(6)
})

test('does not leave TLS on a redirect, and follows only a few', async () => {
  const loop = await listen((request, response) => redirect(`${request.url}x`)(request, response))
  await expect(client().send(new URL(`http://${loop.host}/`), { signal })).rejects.toThrow(OutboundError)
  expect(loop.requests.length).toBe(6)
})

test('ends a body that stalls', async () => {
  const target = await listen((_, response) => void response.writeHead(200).write('x'))
  const http = client({}, 0.3)
  const answer = await http.send(new URL(`http://${target.host}/`), { signal })
  const read = async () => {
    for await (const _ of http.readBody(answer));
  }
  await expect(read()).rejects.toThrow(OutboundError)
})

test('an abort of the caller is not reported as a failure of the host', async () => {
  const target = await listen(() => undefined)
  const abort = new AbortController()
  const reasons: unknown[] = []
  const pending = client({ onFailure: (reason) => void reasons.push(reason) }).send(new URL(`http://${target.host}/`), {
    signal: abort.signal,
  })
  setImmediate(() => abort.abort())
  await expect(pending).rejects.toMatchObject({ name: 'AbortError' })
  expect(reasons).toEqual([])
})
