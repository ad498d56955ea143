// A tenant who has a registry of its own and lets the platform pull from it, to make the platform send requests into the
// networks of the host or to get the layers of another organization.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createTcpServer } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, Berth } from '../support/berth.ts'
import { destroy } from '../support/client.ts'
import { assemble, busyboxImage, makeImage, makeLayer } from '../support/image.ts'
import { type FakeNameServer, startNameServer } from '../support/name-server.ts'
import { freePorts } from '../support/port.ts'
import { type FakeRegistry, fakeRegistry, partsOf } from '../support/registry.ts'
import { until } from '../support/until.ts'

const secret = makeImage(busyboxImage({ Cmd: ['sh', '-c', 'while :; do sleep 0.1; done'], Env: ['PATH=/bin', 'A=1'] }))
const own = makeLayer({ files: [{ name: 'own', content: 'own' }] })
const theft = assemble([secret.layers[0]!, own], { Cmd: ['sh', '-c', 'sleep 1000'] })

let berth: Berth
let names: FakeNameServer
let victim: FakeRegistry
let liar: FakeRegistry
const servers: { close(): unknown }[] = []
/** What connected to places that no tenant may reach. */
const reached: string[] = []
let closedPort = 0
let canary = 0
let evil = ''
let evilPort = 0
let targets: string[] = []
let tenant: Record<string, string>

beforeAll(async () => {
  const [port = 0, closed = 0] = await freePorts(2)
  canary = port
  closedPort = closed
  for (const host of ['127.0.0.1', '127.0.0.2', '::1']) await listenForConnections(host, canary)
  names = await startNameServer(resolve)
  victim = await fakeRegistry({ latest: secret.manifest }, partsOf(secret))
  liar = await fakeRegistry(
    { latest: theft.manifest, same: secret.manifest },
    [theft.config, own, secret.config],
    claim,
  )
  evilPort = await startEvilRegistry()
  evil = `127.0.0.1:${evilPort}`
  // A name that resolves to this address when it is checked and to the other one later.
  await listenForConnections('127.0.0.3', evilPort)
  berth = new Berth({
    BERTH_OUTBOUND_ALLOW: [victim.host, liar.host, evil, `127.0.0.1:${closedPort}`].join(','),
    BERTH_OUTBOUND_DNS: names.address,
  })
  await berth.up()
  for (const slug of ['owner', 'thief']) {
    await berth.ok('POST', '/v1/orgs', { name: slug, slug })
    await berth.ok('POST', '/v1/apps', { app_name: `${slug}-app`, org_slug: slug })
  }
  const { token } = await berth.ok('POST', '/v1/tokens', { kind: 'org', org_slug: 'thief' })
  tenant = { authorization: `Bearer ${token}` }
  targets = forbiddenTargets()
}, 180_000)

afterAll(async () => {
  for (const server of servers) await server.close()
  await Promise.all([names?.close(), victim?.close(), liar?.close()])
  if (berth) await destroy(berth)
})

const hosts: Record<string, string[]> = {
  'loopback.test': ['127.0.0.1'],
  'loopback-six.test': ['::1'],
  'mixed.test': ['127.0.0.1', '8.8.8.8'],
  'mixed-six.test': ['8.8.8.8', '::1'],
  'mapped.test': ['::ffff:7f00:1'],
  'box.test': ['100.64.0.2'],
  'private-network.test': ['fdaa::3'],
  'metadata.test': ['169.254.169.254'],
  'zero.test': ['0.0.0.0'],
  'lan.test': ['192.168.1.1'],
}

function resolve(name: string, time: number): string[] | undefined {
  if (name === 'rebinding.test') return time === 0 ? ['127.0.0.1'] : ['127.0.0.3']
  return hosts[name]
}

async function listenForConnections(host: string, port: number): Promise<void> {
  const server = createTcpServer((socket) => {
    reached.push(`${host}:${port}`)
    socket.on('error', () => undefined).end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
    socket.resume()
  })
  await new Promise<void>((done) => server.listen({ host, port, ipv6Only: true }, done))
  servers.push({ close: () => new Promise((done) => server.close(done)) })
}

/** Says yes to every question whether it has a blob. */
function claim(request: IncomingMessage, response: ServerResponse): boolean {
  if (request.method !== 'HEAD') return false
  response.writeHead(200).end()
  return true
}

/** The repository says what the registry does, and the number after it to which target. */
async function startEvilRegistry(): Promise<number> {
  const image = makeImage({ layers: [] })
  const server: Server = createServer((request, response) => {
    const path = request.url ?? ''
    const [, way = '', at = ''] = /^\/(?:v2|token)\/([a-z]+)\/(\d+)/.exec(path) ?? []
    const target = targets[Number(at)] ?? ''
    const isSecond = request.headers.authorization !== undefined
    const go = (location: string) => void response.writeHead(307, { location }).end()
    const challenge = (realm: string) =>
      void response.writeHead(401, { 'www-authenticate': `Bearer realm="${realm}",service="x"` }).end()
    if (path.startsWith('/token/')) {
      if (way === 'token') return go(target)
      return void response.end('{"token":"valid"}')
    }
    if (way === 'redirect') return go(target)
    if (way === 'chain') return path.includes('again') ? go(target) : go(`http://${evil}/v2/chain/${at}/again`)
    if (way === 'realm') return challenge(target)
    if (way === 'token') return challenge(`http://${evil}/token/token/${at}`)
    if (way === 'location' && !isSecond) return challenge(`http://${evil}/token/location/${at}`)
    if (path.includes('/blobs/')) return go(target)
    return void response.end(image.manifest.content)
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  servers.push({
    close() {
      server.closeAllConnections()
      return new Promise((done) => server.close(done))
    },
  })
  return (server.address() as { port: number }).port
}

/** Hosts of URLs and image names that lead into networks of the host. */
const forbiddenHosts = [
  ...['127.0.0.1', '127.0.0.2', '127.1', '127.0.1', '0x7f.1', '0x7f.0.0.1', '0177.0.0.1', '0x7f.0x0.0x0.0x1'],
  ...['0.0.0.0', '0.0.0.1', 'localhost', 'LOCALHOST', 'any.localhost', 'ip6-localhost.localhost'],
  ...['[::1]', '[0:0:0:0:0:0:0:1]', '[::]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '[::127.0.0.1]', '[::7f00:1]'],
  ...['[64:ff9b::127.0.0.1]', '[64:ff9b::7f00:1]', '[64:ff9b:1::7f00:1]', '[2002:7f00:1::]', '[2001:0:7f00:1::]'],
  ...['[fe80::1]', '[fec0::1]', '[fdaa::3]', '[fdaa:0:1:0:1:0:1:2]', '[fc00::1]', '[ff02::1]', '[fd00:ec2::254]'],
  ...['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.0.1', '100.64.0.1', '100.64.0.2', '100.127.255.254'],
  ...['169.254.169.254', '100.100.100.200', '192.0.0.192', '168.63.129.16', '192.0.2.1', '198.18.0.1', '198.51.100.1'],
  ...['203.0.113.1', '192.88.99.1', '224.0.0.1', '240.0.0.1', '255.255.255.255', '[2001:db8::1]', '[3fff::1]'],
  ...Object.keys(hosts),
]

/** The same hosts in URLs, with forms that image names cannot have. */
function forbiddenTargets(): string[] {
  const moreHosts = [
    '2130706433',
    '0x7f000001',
    '017700000001',
    '0',
    'localhost.',
    '１２７.０.０.１',
    'ⓛocalhost',
    '127。0。0。1',
  ]
  const every = [...forbiddenHosts, ...moreHosts.map(encodeURI)]
  return [
    ...every.map((host) => `http://${host}:${canary}/v2/`),
    ...every.map((host) => `https://${host}:${canary}/v2/`),
    `//127.0.0.2:${canary}/`,
    `http://user:password@127.0.0.2:${canary}/`,
    `http://${evil}@127.0.0.2:${canary}/`,
    `http://${evil}:443@127.0.0.2:${canary}/`,
    `http://127.0.0.2:${canary}\\@${evil}/`,
    `http:\\\\127.0.0.2:${canary}/`,
    `HTTP://127.0.0.2:${canary}/`,
    `\thttp://127.0.0.2:${canary}/`,
    `${berth.addresses.api}/v1/apps`,
    `${berth.addresses.sandbox}/v1/sandboxes`,
    `${berth.addresses.edge}/`,
    `http://127.0.0.2:${canary}/ HTTP/1.1\tx`,
    'file:///etc/passwd',
    `ftp://127.0.0.2:${canary}/`,
    `gopher://127.0.0.2:${canary}/`,
    'data:application/json,{}',
    'unix:/run/docker.sock',
    '',
    'http://',
    'http://[/',
  ]
}

/** Asks the platform to look at an image, and returns the message of the refusal without the name that was asked for. */
async function look(reference: string): Promise<string> {
  const query = 'query($name: String!, $ref: String!) { app(name: $name) { image(ref: $ref) { digest } } }'
  const variables = { name: 'thief-app', ref: reference }
  const { body }: Answer = await berth.call('POST', '/graphql', { query, variables }, tenant)
  expect(body.data?.app?.image ?? null, reference).toBeNull()
  const registry = reference.slice(0, reference.indexOf('/')).toLowerCase()
  return body.errors[0].message.replaceAll(registry, '<registry>')
}

/** Makes the attempts, a few at a time, and returns the distinct messages. */
async function lookAtAll(references: string[]): Promise<string[]> {
  const queue = [...references]
  const messages = new Set<string>()
  const worker = async () => {
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) messages.add(await look(next))
  }
  await Promise.all(Array.from({ length: 8 }, worker))
  return [...messages]
}

const unreachable = expect.stringMatching(/^The registry <registry> cannot be reached: check its name/)

describe('a tenant reaches no network of the host', () => {
  test('by the name of an image', async () => {
    expect(forbiddenHosts.length).toBeGreaterThanOrEqual(40)
    const references = forbiddenHosts.map((host) => `${host}:${canary}/team/app`)
    expect(await lookAtAll(references)).toEqual([unreachable])
    expect(reached).toEqual([])
  })

  test.each(['redirect', 'chain', 'realm', 'token', 'blob', 'location'])('by the %s of a registry', async (way) => {
    const references = targets.map((_, at) => `${evil}/${way}/${at}/app`)
    expect(references.length).toBeGreaterThan(150)
    const messages = await lookAtAll(references)
    // Locations that are empty or stay at the registry are answers of the registry itself.
    const others = messages.filter((message) => !/^The registry <registry> cannot be reached/.test(message))
    expect(others.filter((message) => !/denies access|was not found|is not JSON|of the image/.test(message))).toEqual(
      [],
    )
    expect(messages).toContainEqual(unreachable)
    expect(reached).toEqual([])
  })

  test('by a name that resolves to another address after it was checked', async () => {
    // The first address is allowed, so that the platform connects; it must be the one that was checked.
    const message = await look(`rebinding.test:${evilPort}/app`)
    expect(message).toEqual(unreachable)
    expect(names.asked.filter((name) => name === 'rebinding.test').length).toBeGreaterThan(0)
    expect(reached).toEqual([])
  })

  test('and cannot tell an open port from a closed one, or a name that exists from one that does not', async () => {
    const references = [
      `127.0.0.1:${canary}/app`,
      `127.0.0.2:${canary}/app`,
      `127.0.0.2:${closedPort}/app`,
      `127.0.0.1:${closedPort}/app`,
      `127.0.0.1:${new URL(berth.addresses.api).port}/app`,
      `lan.test:${canary}/app`,
      `loopback.test:${closedPort}/app`,
      'no-such-host.test/app',
      '10.255.255.1/app',
    ]
    const seconds: number[] = []
    const messages = new Set<string>()
    for (const reference of references) {
      const startedAt = performance.now()
      messages.add(await look(reference))
      seconds.push((performance.now() - startedAt) / 1000)
    }
    expect([...messages]).toEqual([unreachable])
    expect(Math.max(...seconds)).toBeLessThan(10)
    expect(reached).toEqual([])
  })

  test('when a machine or a sandbox is to start from the image', async () => {
    for (const image of [`127.0.0.2:${canary}/app`, `${evil}/redirect/1/app`, `loopback.test:${canary}/app`]) {
      const { id } = (await machine('thief-app', image, tenant)).body
      const { failure } = await failed('thief-app', id)
      expect(failure).toContain('cannot be reached')
    }
    const headers = { ...tenant, 'content-type': 'application/json' }
    const body = JSON.stringify({ name: 'thieves', image: `127.0.0.2:${canary}/app` })
    await fetch(`${berth.addresses.sandbox}/v1/sandboxes`, { method: 'POST', headers, body })
    const read = await fetch(`${berth.addresses.sandbox}/v1/sandboxes/thieves/fs/read?path=/etc/passwd`, { headers })
    expect(read.status).toBe(503)
    expect(reached).toEqual([])
  })
})

async function machine(app: string, image: string, headers: Record<string, string> = {}): Promise<Answer> {
  const config = { image, restart: { policy: 'no' } }
  return berth.call('POST', `/v1/apps/${app}/machines`, { config }, headers)
}

/** Waits until the platform has given up the machine. */
async function failed(app: string, id: string): Promise<{ state: string; failure?: string }> {
  await until(async () => (await berth.ok('GET', `/v1/apps/${app}/machines/${id}`)).state === 'destroyed')
  return berth.ok('GET', `/v1/apps/${app}/machines/${id}`)
}

describe('a tenant gets no layer of another organization', () => {
  beforeAll(async () => {
    const { id } = (await machine('owner-app', `${victim.host}/private`)).body
    await berth.ok('GET', `/v1/apps/owner-app/machines/${id}/wait?state=started&timeout=60`)
  })

  test.each([
    ['by a manifest of its own that names the layer', () => `${liar.host}/app`],
    ['by a copy of the manifest', () => `${liar.host}/app:same`],
    ['by the digest of the manifest', () => `${liar.host}/app@${secret.manifest.digest}`],
    [
      'by the digest of the manifest in a registry that does not have it',
      () => `${evil}/redirect/0/app@${secret.manifest.digest}`,
    ],
  ])('%s', async (_, reference) => {
    const { id } = (await machine('thief-app', reference(), tenant)).body
    const { failure } = await failed('thief-app', id)
    expect(failure).toMatch(/not found|cannot be reached|denies access/)
    expect(reached).toEqual([])
  })
})

describe('a health check', () => {
  test('goes to the machine that it belongs to, whatever its path, headers or answers say', async () => {
    const answer = `HTTP/1.1 302 Found\\r\\nLocation: http://127.0.0.1:${canary}/\\r\\nContent-Length: 0\\r\\n\\r\\n`
    const cmd = ['sh', '-c', `while :; do printf '${answer}' | nc -l -p 8080; done`]
    const paths = ['/', `//127.0.0.1:${canary}/`, `/\\127.0.0.1:${canary}/`, '/%0d%0aHost:%20x']
    const check = (path: string) => ({ type: 'http', port: 8080, path, interval: '1s', timeout: '2s' })
    const headers = [
      { name: 'Host', values: [`127.0.0.1:${canary}`] },
      { name: 'X-Forwarded-Host', values: [`127.0.0.1:${canary}`] },
    ]
    const checks = Object.fromEntries(paths.map((path, at) => [`check-${at}`, { ...check(path), headers }]))
    const config = { image: `${victim.host}/private`, init: { cmd }, checks }
    const { id } = await berth.ok('POST', '/v1/apps/owner-app/machines', { config })
    await until(async () => {
      const shown = await berth.ok('GET', `/v1/apps/owner-app/machines/${id}`)
      const outputs = (shown.checks ?? []).map(({ output }: { output?: string }) => output ?? '')
      return outputs.some((output: string) => output.startsWith('HTTP 302'))
    })
    const injections = [
      check(`http://127.0.0.1:${canary}/`),
      check(`@127.0.0.1:${canary}/`),
      check('/\r\nX: y'),
      check('/ HTTP/1.1\r\n\r\nGET /x'),
      { ...check('/'), method: 'GET / HTTP/1.1' },
      { ...check('/'), headers: [{ name: 'X', values: ['y\r\nZ: z'] }] },
      { ...check('/'), headers: [{ name: 'X: y\r\nZ', values: ['z'] }] },
    ]
    for (const split of injections) {
      const body = { config: { ...config, checks: { split } } }
      expect((await berth.call('POST', '/v1/apps/owner-app/machines', body)).status, JSON.stringify(split)).toBe(400)
    }
    expect(reached).toEqual([])
    await berth.ok('DELETE', `/v1/apps/owner-app/machines/${id}?force=true`)
  })
})
