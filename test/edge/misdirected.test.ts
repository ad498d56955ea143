import { once } from 'node:events'
import { connect } from 'node:tls'
import { expect, test } from 'vitest'
import { useEdge } from '../support/edge.ts'
import { askHttp2, makePair, openHttp2 } from '../support/tls.ts'

const tls = { ...makePair('*.app.test'), isRequired: false, certificates: { find: () => undefined } }
const edge = useEdge({ tls })

async function makeApp(orgId: string): Promise<string> {
  const app = await edge.app({ orgId })
  await edge.backendOf(app, (_request, reply) => void reply.end(app))
  return `${app}.app.test`
}

/** Sends requests over one TLS connection and returns their statuses. */
async function askAll(servername: string, hosts: string[], target = (_host: string) => '/'): Promise<number[]> {
  const socket = connect({ port: edge.port, servername, rejectUnauthorized: false })
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
  })
  hosts.forEach((host, index) => {
    const isLast = index === hosts.length - 1
    socket.write(`GET ${target(host)} HTTP/1.1\r\nHost: ${host}\r\n${isLast ? 'Connection: close\r\n' : ''}\r\n`)
  })
  await once(socket, 'close')
  return [...text.matchAll(/HTTP\/1\.1 (\d+) /g)].map((found) => Number(found[1]))
}

test('a connection serves host names of one organization only', async () => {
  const [first, second, other] = [await makeApp('acme'), await makeApp('acme'), await makeApp('globex')]
  expect(await askAll(first, [first, second, other, first])).toEqual([200, 200, 421, 200])
  expect(await askAll(other, [first, other, `${other}:443`, other.toUpperCase(), `${other}.`])).toEqual([
    421, 200, 200, 200, 200,
  ])
  expect(await askAll(first.toUpperCase(), [first, other])).toEqual([200, 421])
})

test('an absolute target counts instead of the Host field', async () => {
  const [own, other] = [await makeApp('acme'), await makeApp('globex')]
  const absolute = (host: string) => `http://${host === own ? other : own}/`
  expect(await askAll(own, [own, other], absolute)).toEqual([421, 200])
})

test('apps and sandboxes of different organizations are told apart too', async () => {
  const app = await makeApp('acme')
  const backend = await edge.backend((_request, reply) => void reply.end('box'))
  const box = await edge.sandbox({ orgId: 'globex', port: backend.port })
  expect(await askAll(app, [box, app])).toEqual([421, 200])
  expect(await askAll(box, [app, box])).toEqual([421, 200])
})

test('a name that belongs to no one does not restrict the connection', async () => {
  const [first, other] = [await makeApp('acme'), await makeApp('globex')]
  expect(await askAll('edge.example.com', [first, other, 'missing.app.test'])).toEqual([200, 200, 404])
  expect(await askAll(first, ['missing.app.test'])).toEqual([404])
})

test('streams of one HTTP/2 connection are checked one by one', async () => {
  const [first, second, other] = [await makeApp('acme'), await makeApp('acme'), await makeApp('globex')]
  const session = openHttp2(first, edge.port)
  const statuses = await Promise.all(
    [first, second, other, first].map(async (host) => {
      const reply = await askHttp2(session, { ':path': '/', ':authority': host })
      return reply.headers[':status']
    }),
  )
  session.close()
  expect(statuses).toEqual([200, 200, 421, 200])
})

test('a body is not taken for the next request', async () => {
  const [own, other] = [await makeApp('acme'), await makeApp('globex')]
  const socket = connect({ port: edge.port, servername: own, rejectUnauthorized: false })
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
  })
  const hidden = `GET / HTTP/1.1\r\nHost: ${own}\r\n\r\n`
  socket.write(`POST / HTTP/1.1\r\nHost: ${other}\r\nContent-Length: ${hidden.length}\r\n\r\n${hidden}`)
  await once(socket, 'close')
  expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 421'])
})
