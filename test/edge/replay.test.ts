import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { expect, test } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import { useEdge } from '../support/edge.ts'
import { until } from '../support/until.ts'

const edge = useEdge({ waitTimeoutMs: 1_000 })

const { ask } = edge
type Answer = (request: IncomingMessage, reply: ServerResponse) => void

const replay =
  (value: string): Answer =>
  (request, reply) => {
    request.resume()
    reply.writeHead(409, { 'fly-replay': value }).end('ignored')
  }

/** Responds with what it received. */
const echo: Answer = async (request, reply) => {
  let body = ''
  for await (const chunk of request) body += chunk
  reply.end(JSON.stringify({ method: request.method, url: request.url, headers: request.headers, body }))
}

test('a request is replayed to another app of the organization, also in another network or without an address', async () => {
  const [source, target] = [await edge.app(), await edge.app({ ip: null, network: 'apart' })]
  const { id } = await edge.backendOf(source, replay(`app=${target};state=some=thing`), { region: 'ams' })
  await edge.backendOf(target, echo)
  const reply = await ask(source, { method: 'POST', path: '/x?y=1', body: 'hello', headers: { 'x-mine': '1' } })
  const got = JSON.parse(reply.body)
  expect(got).toMatchObject({ method: 'POST', url: '/x?y=1', body: 'hello', headers: { 'x-mine': '1' } })
  expect(got.headers['fly-replay-src']).toMatch(new RegExp(`^instance=${id};region=ams;t=\\d{16};state=some=thing$`))
  expect(Object.keys(reply.headers)).not.toContain('fly-replay')
})

test('an organization can forbid replays between its networks', async () => {
  const orgId = await edge.org('apart')
  const [source, near] = [await edge.app({ orgId }), await edge.app({ orgId })]
  const far = await edge.app({ orgId, network: 'other' })
  let wanted = far
  await edge.backendOf(source, (request, reply) => replay(`app=${wanted}`)(request, reply))
  await edge.backendOf(near, echo)
  const { requests } = await edge.backendOf(far, echo)
  const set = async (allowed: boolean) => {
    await edge.database.db.query('update org set cross_network_replays = $2 where id = $1', [orgId, allowed])
    await until(() => edge.table.apps.get(source)!.crossesNetworks === allowed, 9) // the periodic reload takes ten seconds
  }
  expect((await ask(source)).status).toBe(200)
  await set(false)
  const reply = await ask(source)
  expect([reply.status, JSON.parse(reply.body).error, requests.length]).toEqual([502, 'replay_failed', 1])
  wanted = near
  expect((await ask(source)).status).toBe(200)
  await set(true)
  wanted = far
  expect((await ask(source)).status).toBe(200)
})

test('a request is not replayed to an app of another organization', async () => {
  const [source, foreign] = [await edge.app(), await edge.app({ orgId: 'strangers' })]
  await edge.backendOf(source, replay(`app=${foreign}`))
  const { requests } = await edge.backendOf(foreign, echo)
  const reply = await ask(source)
  expect([reply.status, JSON.parse(reply.body).error, requests.length]).toEqual([502, 'replay_failed', 0])
})

test('a replay can name an instance, a region or elsewhere', async () => {
  const app = await edge.app()
  let wanted = ''
  const answer =
    (name: string): Answer =>
    (request, reply) => {
      if (request.headers['fly-replay-src'] === undefined) reply.setHeader('fly-replay', wanted)
      reply.end(name)
    }
  const one = await edge.backendOf(app, answer('one'), { region: 'ams' })
  const two = await edge.backendOf(app, answer('two'), { region: 'iad' })
  const times = Array.from({ length: 6 })
  const ends = async (value: string) => {
    wanted = value
    return new Set(await Promise.all(times.map(async () => (await ask(app)).body)))
  }
  expect(await ends(`instance=${two.id}`)).toEqual(new Set(['two']))
  expect(await ends('region=ams')).toEqual(new Set(['one']))
  expect(await ends('region="nowhere,iad"')).toEqual(new Set(['two']))
  expect(await ends('region=us')).toEqual(new Set(['two']))
  expect(await ends('region="apac,eu,na"')).toEqual(new Set(['one']))
  expect(await ends(`prefer_instance=${one.id}`)).toEqual(new Set(['one']))
  wanted = 'elsewhere=true'
  expect((await ask(app, { headers: { 'fly-force-instance-id': one.id } })).body).toBe('two')
  const missing = await ends('instance=00000000000000')
  expect(JSON.parse([...missing][0]!)).toMatchObject({ error: 'no_candidate' })
})

test('clients can select machines and regions by header fields', async () => {
  const app = await edge.app()
  const one = await edge.backendOf(app, echo, { region: 'ams' })
  const two = await edge.backendOf(app, echo, { region: 'iad' })
  const gets = async (headers: OutgoingHttpHeaders) => {
    const before = [one.requests.length, two.requests.length]
    const reply = await ask(app, { headers })
    const got = one.requests.length > before[0]! ? 'one' : two.requests.length > before[1]! ? 'two' : ''
    return [reply.status, got, JSON.parse(reply.body).headers?.['fly-preferred-instance-unavailable']]
  }
  for (let round = 0; round < 3; round++) {
    expect(await gets({ 'fly-force-instance-id': two.id })).toEqual([200, 'two', undefined])
    expect(await gets({ 'fly-prefer-instance-id': one.id })).toEqual([200, 'one', undefined])
    expect(await gets({ 'fly-force-region': 'iad' })).toEqual([200, 'two', undefined])
    expect(await gets({ 'fly-prefer-region': 'ams' })).toEqual([200, 'one', undefined])
    expect(await gets({ 'fly-force-region': 'eu' })).toEqual([200, 'one', undefined])
    expect(await gets({ 'fly-prefer-region': 'usa' })).toEqual([200, 'two', undefined])
  }
  expect((await gets({ 'fly-prefer-region': 'nowhere' }))[0]).toBe(200)
  expect(await gets({ 'fly-force-region': 'nowhere' })).toEqual([503, '', undefined])
  expect((await gets({ 'fly-force-instance-id': 'gone' }))[0]).toBe(503)
  expect((await gets({ 'fly-prefer-instance-id': 'gone' }))[2]).toBe('gone')
})

test('a body of up to a megabyte is sent again, also while it is still arriving', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  await edge.backendOf(source, (_request, reply) => void reply.writeHead(200, { 'fly-replay': `app=${target}` }).end())
  await edge.backendOf(target, echo)
  const large = randomBytes(500_000).toString('hex')
  for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
    const reply = await ask(source, { method: 'POST', body: large, headers })
    expect(JSON.parse(reply.body).body === large).toBe(true)
  }
  await until(() => edge.resendBudget.usedBytes === 0)
})

test('a larger body is not sent again, and the client gets an error', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  await edge.backendOf(source, (request, reply) => {
    request.resume()
    request.on('end', () => reply.writeHead(200, { 'fly-replay': `app=${target}` }).end())
  })
  const { requests } = await edge.backendOf(target, echo)
  for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
    const reply = await ask(source, { method: 'POST', body: Buffer.alloc(1_100_000, 'x'), headers })
    expect([reply.status, JSON.parse(reply.body).error]).toEqual([502, 'replay_failed'])
  }
  expect(requests).toEqual([])
  await until(() => edge.resendBudget.usedBytes === 0)
})

test('a replay loop ends with an error', async () => {
  const [one, two] = [await edge.app(), await edge.app()]
  const first = await edge.backendOf(one, replay(`app=${two}`))
  const second = await edge.backendOf(two, replay(`app=${one}`))
  const reply = await ask(one)
  expect([reply.status, JSON.parse(reply.body).error]).toEqual([502, 'replay_loop'])
  expect(first.requests.length + second.requests.length).toBe(11)
})

test('a failed replay falls back to its source, whose response is final', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  const answer: Answer = (request, reply) => {
    const failed = request.headers['fly-replay-failed']
    request.resume()
    reply.setHeader('fly-replay', `app=${target};timeout=200ms;fallback=force_self`)
    reply.end(failed ?? 'first')
  }
  const { id, requests } = await edge.backendOf(source, answer)
  await edge.machine(target, { state: 'stopped', service: { autostart: false } })
  const refused = (await ask(source, { method: 'POST', body: 'x' })).body
  expect(refused).toMatch(
    new RegExp(`^instance=;app=${target};region=;replay_source=${id};reason=no_candidate;elapsed_ms=\\d+$`),
  )
  await edge.machine(target, { state: 'starting' })
  expect((await ask(source)).body).toMatch(/reason=timeout;elapsed_ms=([2-9]\d\d|\d{4,})$/)
  expect(requests.length).toBe(4)
})

test('the JSON form can transform the request', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  let order: object = {}
  await edge.backendOf(source, (request, reply) => {
    request.resume()
    reply.writeHead(200, { 'content-type': 'application/vnd.fly.replay+json' })
    const text = JSON.stringify(order)
    reply.write(text.slice(0, 5))
    setImmediate(() => reply.end(text.slice(5)))
  })
  await edge.backendOf(target, echo)
  const transform = { path: '/other', delete_headers: ['cookie'], set_headers: [{ name: 'X-Set', value: 'yes' }] }
  order = { app: target, state: 's', transform }
  const reply = await ask(source, { method: 'POST', body: 'kept', headers: { cookie: 'a=b', 'x-set': 'no' } })
  const got = JSON.parse(reply.body)
  expect(got).toMatchObject({ url: '/other', body: 'kept', headers: { 'x-set': 'yes' } })
  expect(got.headers.cookie).toBeUndefined()
  order = { app: target, transform: { set_headers: [{ name: 'host', value: 'x' }] } }
  const refused = await ask(source)
  expect([refused.status, JSON.parse(refused.body).message]).toEqual([
    502,
    'the program asks for an invalid replay: the header host cannot be changed',
  ])
})

test('a cached replay bypasses its source until it expires', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  const answer: Answer = (request, reply) => {
    request.resume()
    reply.setHeader('fly-replay', `app=${target};state=s`)
    reply.setHeader('fly-replay-cache', '/kept/*')
    reply.setHeader('fly-replay-cache-ttl-secs', '60')
    reply.setHeader('fly-replay-cache-allow-bypass', 'yes')
    reply.end()
  }
  const front = await edge.backendOf(source, answer)
  let isInvalid = false
  const behind = await edge.backendOf(target, (request, reply) => {
    if (isInvalid) reply.setHeader('fly-replay-cache', 'invalidate')
    echo(request, reply)
  })
  const status = async (path: string, headers: OutgoingHttpHeaders = {}) => {
    const reply = await ask(source, { path, headers, method: 'POST', body: 'x' })
    expect(Object.keys(reply.headers).filter((name) => name.startsWith('fly-replay'))).toEqual([])
    const got = JSON.parse(reply.body)
    expect(got.body).toBe('x')
    return [got.headers['fly-replay-cache-status'], got.headers['fly-replay-src'] !== undefined, front.requests.length]
  }
  expect(await status('/kept/1')).toEqual(['miss', true, 1])
  expect(await status('/kept/2?x=/')).toEqual(['hit', false, 1])
  expect(await status('/other')).toEqual(['miss', true, 2])
  expect((await status('/kept/3', { 'fly-replay-cache-control': 'skip' }))[2]).toBe(3)
  isInvalid = true
  expect(await status('/kept/4')).toEqual(['hit', false, 3])
  isInvalid = false
  expect(await status('/kept/5')).toEqual(['miss', true, 4])
  await edge.database.db.query(`update machine set state = 'destroyed' where id = $1`, [behind.id])
  await until(() => edge.table.apps.get(target)!.targets.length === 0)
  expect([(await ask(source, { path: '/kept/6' })).status, front.requests.length]).toEqual([404, 5])
})

/** Creates an app whose port caches replays to another app. */
async function makeSessions(rules: object[], replayed = '') {
  const [source, target] = [await edge.app({ subdomains: true }), await edge.app()]
  const ports = [{ port: 80, handlers: ['http'], http_options: { replay_cache: rules } }]
  const front = await edge.backendOf(source, replay(`app=${target}${replayed}`), { service: { ports } })
  const answers: { invalidates?: boolean } = {}
  const behind = await edge.backendOf(target, (request, reply) => {
    if (!answers.invalidates) return echo(request, reply)
    answers.invalidates = false
    reply.writeHead(200, { 'content-type': 'application/vnd.fly.replay+json' })
    reply.end(JSON.stringify({ app: source, cache: { invalidate: true } }))
  })
  /** Returns the cache status, whether Fly-Replay-Src is set, and the number of requests to the source. */
  const status = async (headers: OutgoingHttpHeaders, path = '/', host = source) => {
    const got = JSON.parse((await ask(host, { path, headers })).body).headers
    return [got['fly-replay-cache-status'], got['fly-replay-src'] !== undefined, front.requests.length]
  }
  return { source, target, front, behind, answers, status }
}

const rule = { path_prefix: '/', ttl_seconds: 60, type: 'cookie', name: 'sid' }

test('requests with the same cookie use the cached replay, and others do not', async () => {
  const { source, status } = await makeSessions([rule])
  const one = { cookie: 'a=b; sid=one; c=d' }
  expect(await status(one)).toEqual(['miss', true, 1])
  expect(await status(one, '/any?path=1')).toEqual(['hit', false, 1])
  expect(await status({ cookie: 'sid=two' })).toEqual(['miss', true, 2])
  expect(await status({ cookie: 'SID=one' })).toEqual([undefined, true, 3])
  expect(await status({})).toEqual([undefined, true, 4])
  expect(await status(one, '/', `other.${source}.app.test`)).toEqual(['miss', true, 5])
  expect(await status({ ...one, 'fly-replay-cache-control': 'skip' })).toEqual(['hit', false, 5])
})

test('the rule with the longest path applies, and clients may bypass it', async () => {
  const { status } = await makeSessions([
    rule,
    { path_prefix: '/api', ttl_seconds: 60, type: 'header', name: 'X-Session', allow_bypass: true },
  ])
  const both = { cookie: 'sid=one', 'x-session': '1' }
  expect(await status(both, '/api/x')).toEqual(['miss', true, 1])
  expect(await status({ 'x-session': '1' }, '/api')).toEqual(['hit', false, 1])
  expect(await status({ cookie: 'sid=one' }, '/api/x')).toEqual([undefined, true, 2])
  expect(await status(both, '/apis')).toEqual(['miss', true, 3])
  expect(await status({ ...both, 'fly-replay-cache-control': 'skip' }, '/api/x')).toEqual(['bypass', true, 4])
  expect(await status(both, '/api/x')).toEqual(['hit', false, 4])
})

test('a cached session ends when the target invalidates it or disappears', async () => {
  const { source, target, front, behind, answers, status } = await makeSessions([rule])
  const cookie = 'sid=one'
  await status({ cookie })
  answers.invalidates = true
  // The request goes back to the source, whose replay is cached again.
  expect(await status({ cookie })).toEqual(['miss', true, 2])
  expect(await status({ cookie })).toEqual(['hit', false, 2])
  const next = await edge.backendOf(target, echo)
  await edge.database.db.query(`update machine set state = 'destroyed' where id = $1`, [behind.id])
  await until(() => edge.table.apps.get(target)!.targets.length === 1)
  expect(await status({ cookie })).toEqual(['hit', false, 2])
  await edge.database.db.query(`update machine set state = 'destroyed' where id = $1`, [next.id])
  await until(() => edge.table.apps.get(target)!.targets.length === 0)
  const reply = await ask(source, { headers: { cookie } })
  expect([reply.status, front.requests.length]).toEqual([404, 3])
})

test('a replay with options for a single request is not cached', async () => {
  const { status } = await makeSessions([rule], ';state=once')
  const cookie = 'sid=one'
  expect(await status({ cookie })).toEqual([undefined, true, 1])
  expect(await status({ cookie })).toEqual([undefined, true, 2])
})

test('a WebSocket request can be replayed', async () => {
  const [source, target] = [await edge.app(), await edge.app()]
  const front = await edge.backendOf(source, replay(`app=${target}`))
  front.server.on('upgrade', (_request, socket) => {
    socket.end(`HTTP/1.1 200 OK\r\nfly-replay: app=${target}\r\nContent-Length: 0\r\n\r\n`)
  })
  const behind = await edge.backendOf(target, echo)
  new WebSocketServer({ server: behind.server }).on('connection', (socket) => socket.send('from the other'))
  const client = new WebSocket(`ws://127.0.0.1:${edge.port}/`, { headers: { host: `${source}.app.test` } })
  expect(String((await once(client, 'message'))[0])).toBe('from the other')
  client.terminate()
})

test('all loads are zero in the end', async () => {
  await until(() => [...edge.table.apps.all()].every((app) => app.targets.every(({ load }) => load === 0)))
  expect(edge.errors).toEqual([])
})
