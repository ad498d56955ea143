import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { connect, createServer as createTcpServer } from 'node:net'
import { expect, test, vi } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import { type Reply, useEdge } from '../support/edge.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

// Long enough for a busy host; requests that wait must not time out here.
const edge = useEdge({ waitTimeoutMs: 40_000 })
const hasty = useEdge({ waitTimeoutMs: 500 })

const { ask } = edge
const say = (text: string) => (_request: IncomingMessage, reply: ServerResponse) => void reply.end(text)
const json = (reply: Reply) => JSON.parse(reply.body)
const sql = (text: string, values: unknown[] = []) => edge.database.db.query(text, values)

async function body(request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request) text += chunk
  return text
}

test('an app answers at its host name only if it has an address', async () => {
  const [open, closed] = [await edge.app(), await edge.app({ ip: null })]
  await edge.backendOf(open, say('open'))
  await edge.backendOf(closed, say('closed'))
  expect((await ask(open)).body).toBe('open')
  const unknown = await ask(closed)
  expect([unknown.status, json(unknown).message]).toEqual([404, `nothing is known as ${closed}.app.test`])
  await sql(`insert into ip (app_id, ip, type, shared) values ($1, '127.0.0.9', 'shared_v4', true)`, [closed])
  await until(async () => (await ask(closed)).body === 'closed')
  await sql('delete from ip where app_id = $1', [closed])
  await until(async () => (await ask(closed)).status === 404)
})

test('a request for an app without machines gets an explanation', async () => {
  const empty = await edge.app()
  await until(async () => json(await ask(empty)).message === `the app ${empty} has no machine with a service yet`)
  expect((await ask(empty)).status).toBe(404)
})

test('subdomains work if the app has enabled them, and custom host names if the app owns them', async () => {
  const [wide, narrow] = [await edge.app({ subdomains: true }), await edge.app()]
  await edge.backendOf(wide, say('wide'))
  await edge.backendOf(narrow, say('narrow'))
  expect((await ask(`a.b.${wide}.app.test`)).body).toBe('wide')
  expect((await ask(`a.${narrow}.app.test`)).status).toBe(404)
  await sql(`insert into host (hostname, app_id) values ('www.example.com', $1), ('*.wild.example.com', $1)`, [narrow])
  await until(async () => (await ask('www.example.com')).body === 'narrow')
  expect((await ask('any.wild.example.com')).body).toBe('narrow')
  expect((await ask('wild.example.com')).status).toBe(404)
  // The platform's own host names take precedence over custom ones.
  await sql('insert into host (hostname, app_id) values ($1, $2)', [`${wide}.app.test`, narrow])
  expect((await ask(wide)).body).toBe('wide')
})

const readiness = { checks: { ready: { type: 'tcp', port: 1, kind: 'readiness' } } }

test('a change of a machine takes effect by its notification, not by the periodic reload', async () => {
  const app = await edge.app()
  const one = await edge.backendOf(app, say('one'), { config: readiness })
  const two = await edge.backendOf(app, say('two'), { config: readiness, cordoned: true })
  await sql(
    `insert into machine_check (machine_id, name, status) values ($1, 'ready', 'passing'), ($2, 'ready', 'passing')`,
    [one.id, two.id],
  )
  const change = async (text: string, open: string[]) => {
    await sql(text)
    const opened = () => edge.table.apps.get(app)!.targets.filter(({ isOpen }) => isOpen)
    const ids = () => opened().map(({ machineId }) => machineId)
    await until(() => ids().toSorted().join() === open.toSorted().join(), 9) // the periodic reload takes ten seconds
    const answers = new Set<string>()
    for (let round = 0; round < 10; round++) answers.add((await ask(app)).body)
    return [...answers].sort()
  }
  expect((await ask(app)).body).toBe('one')
  const cordon = `update machine set cordoned = (id = '${one.id}') where app_id = '${app}'`
  expect(await change(cordon, [two.id])).toEqual(['two'])
  const uncordon = `update machine set cordoned = false where app_id = '${app}'`
  expect(await change(uncordon, [one.id, two.id])).toEqual(['one', 'two'])
  const fail = `update machine_check set status = 'critical' where machine_id = '${one.id}'`
  expect(await change(fail, [two.id])).toEqual(['two'])
  const pass = `update machine_check set status = 'passing' where machine_id = '${one.id}'`
  expect(await change(pass, [one.id, two.id])).toEqual(['one', 'two'])
  const stop = `update machine set state = 'stopping' where id = '${two.id}'`
  expect(await change(stop, [one.id])).toEqual(['one'])
})

test('an informational check does not gate requests', async () => {
  const app = await edge.app()
  const config = { checks: { info: { type: 'tcp', port: 1 }, ...readiness.checks } }
  const { id } = await edge.backendOf(app, say('there'), { config })
  await sql(
    `insert into machine_check (machine_id, name, status) values ($1, 'info', 'critical'), ($1, 'ready', 'passing')`,
    [id],
  )
  for (let round = 0; round < 5; round++) expect((await ask(app)).body).toBe('there')
  await sql(`update machine_check set status = 'critical' where machine_id = $1`, [id])
  await until(() => edge.table.apps.get(app)?.targets[0]?.isOpen === false)
  const waiting = ask(app)
  await sql(`update machine_check set status = 'passing' where machine_id = $1`, [id])
  expect((await waiting).body).toBe('there')
})

test('a machine gets no request before its checks pass, and no other machine is started meanwhile', async () => {
  const app = await edge.app()
  const service = { checks: [{ type: 'http' }] }
  const young = await edge.backendOf(app, say('young'), { service })
  const name = `servicecheck-00-http-${young.port}`
  await sql(`insert into machine_check (machine_id, name, status) values ($1, $2, 'warning')`, [young.id, name])
  const asleep = await edge.machine(app, { port: await freePort(), state: 'stopped' })
  const waits = vi.spyOn(edge.balancer, 'enqueue')
  const waiting = ask(app)
  await until(() => waits.mock.calls.length > 0)
  waits.mockRestore()
  expect(young.requests).toEqual([])
  await sql(`update machine_check set status = 'passing' where machine_id = $1`, [young.id])
  expect((await waiting).body).toBe('young')
  expect((await sql('select state from machine where id = $1', [asleep])).rows).toEqual([{ state: 'stopped' }])
})

test('a request for a machine that never passes its checks times out with the reason', async () => {
  const app = await hasty.app()
  await hasty.backendOf(app, say('never'), { service: { checks: [{ type: 'http' }] } })
  const reply = await ask(app, { port: hasty.port })
  expect([reply.status, json(reply).message]).toEqual([503, `no machine of ${app} passed its checks within 0.5 s`])
})

test('requests go to the least loaded machine, and equal machines take turns', async () => {
  const app = await edge.app()
  const held: ServerResponse[] = []
  const counts = [0, 0]
  const answer = (index: number) => (request: IncomingMessage, reply: ServerResponse) => {
    counts[index]! += 1
    if (request.url === '/hold') held.push(reply)
    else reply.end(String(index))
  }
  await edge.backendOf(app, answer(0))
  await edge.backendOf(app, answer(1))
  const holding = ask(app, { path: '/hold' })
  await until(() => held.length === 1)
  const busy = counts.indexOf(1)
  for (let round = 0; round < 10; round++) expect((await ask(app)).body).toBe(String(1 - busy))
  held[0]!.end()
  await holding
  for (let round = 0; round < 20; round++) await ask(app)
  expect(Math.min(...counts)).toBeGreaterThan(5)
})

test('requests above the hard limit wait', async () => {
  const app = await edge.app()
  const held: ServerResponse[] = []
  let most = 0
  const hold = (_request: IncomingMessage, reply: ServerResponse) => {
    held.push(reply)
    most = Math.max(most, held.length)
  }
  await edge.backendOf(app, hold, { service: { concurrency: { type: 'requests', soft_limit: 1, hard_limit: 2 } } })
  const replies = Array.from({ length: 3 }, () => ask(app))
  await until(() => held.length === 2)
  await until(() => edge.table.apps.get(app)!.targets[0]!.load === 2)
  held.shift()!.end('first')
  await until(() => held.length === 2)
  expect(most).toBe(2)
  for (const reply of held.splice(0)) reply.end('done')
  expect((await Promise.all(replies)).map(({ status }) => status)).toEqual([200, 200, 200])
})

test('requests above the hard limit are refused when they time out', async () => {
  const app = await hasty.app()
  const held: ServerResponse[] = []
  const service = { concurrency: { type: 'requests', soft_limit: 1, hard_limit: 2 } }
  await hasty.backendOf(app, (_request, reply) => void held.push(reply), { service })
  const askHasty = () => ask(app, { port: hasty.port })
  const stuck = [askHasty(), askHasty()]
  await until(() => held.length === 2)
  const late = await askHasty()
  expect([late.status, late.headers['retry-after'], json(late).message]).toEqual([
    503,
    '1',
    `all machines of ${app} were at their hard limits, and none became free within 0.5 s`,
  ])
  for (const reply of held.splice(0)) reply.end()
  await Promise.all(stuck)
})

test('a machine that refuses connections, or closes them before a response, is skipped', async () => {
  const app = await edge.app()
  await edge.machine(app, { port: await freePort() })
  await edge.backendOf(app, (request) => request.socket.destroy())
  await edge.backendOf(app, async (request, reply) => reply.end(`good ${await body(request)}`))
  for (let round = 0; round < 10; round++) expect((await ask(app)).body).toBe('good ')
  expect((await ask(app, { method: 'PUT', body: 'twice' })).body).toBe('good twice')
})

test('a request that is not idempotent is not sent twice', async () => {
  const app = await edge.app()
  const breaking = await edge.backendOf(app, (request) => request.socket.destroy())
  const reply = await ask(app, { method: 'POST', body: 'once' })
  expect([reply.status, breaking.requests.length]).toEqual([502, 1])
})

test('a request waits for a starting machine, and starts a stopped one', async () => {
  const app = await edge.app()
  const port = await freePort()
  const id = await edge.machine(app, { port, state: 'stopped' })
  const replies = Array.from({ length: 20 }, () => ask(app))
  const isStarting = async () =>
    (await sql('select 1 from machine where id = $1 and state = $2', [id, 'starting'])).rowCount
  await until(async () => (await isStarting()) === 1)
  const { rows } = await sql('select type, status, source from machine_event where machine_id = $1', [id])
  expect(rows).toEqual([{ type: 'start', status: 'starting', source: 'proxy' }])
  await edge.backend(say('awake'), port)
  await sql(`update machine set state = 'started' where id = $1`, [id])
  expect((await Promise.all(replies)).every(({ status, body }) => status === 200 && body === 'awake')).toBe(true)
})

test('a machine without autostart is not started, and the request fails at once', async () => {
  const app = await edge.app()
  await edge.machine(app, { state: 'stopped', service: { autostart: false } })
  await edge.machine(app, { state: 'stopped', cordoned: true })
  const started = performance.now()
  const reply = await ask(app)
  expect([reply.status, json(reply).message]).toEqual([
    503,
    `no machine of ${app} runs for port 80, and none may be started`,
  ])
  expect(performance.now() - started).toBeLessThan(30_000)
})

test('another machine is started when all running ones are at their soft limits', async () => {
  const app = await edge.app()
  const held: ServerResponse[] = []
  const service = { concurrency: { type: 'requests', soft_limit: 1, hard_limit: 10 } }
  await edge.backendOf(app, (_request, reply) => void held.push(reply), { service })
  const asleep = await edge.machine(app, { state: 'suspended', service, port: await freePort() })
  const replies = [ask(app), ask(app)]
  await until(() => held.length === 2)
  await until(
    async () => (await sql(`select 1 from machine where id = $1 and state = 'starting'`, [asleep])).rowCount === 1,
  )
  for (const reply of held) reply.end('ok')
  expect((await Promise.all(replies)).map(({ body }) => body)).toEqual(['ok', 'ok'])
})

test('the program gets the address of the client and the region of the edge', async () => {
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => {
    reply.setHeader('server', 'mine')
    reply.end(JSON.stringify(request.headers))
  })
  const reply = await ask(app, {
    headers: { 'fly-replay-src': 'forged', 'Fly-Region': 'forged', authorization: 'Bearer x' },
  })
  expect(json(reply)).toMatchObject({
    host: `${app}.app.test`,
    'fly-client-ip': '127.0.0.1',
    'fly-forwarded-port': String(edge.port),
    'fly-region': 'local',
    'x-forwarded-for': '127.0.0.1',
    'x-forwarded-proto': 'http',
    'x-forwarded-ssl': 'off',
    'x-forwarded-port': String(edge.port),
    via: '1.1 berth',
    authorization: 'Bearer x',
  })
  expect(json(reply)['fly-replay-src']).toBeUndefined()
  expect(reply.headers).toMatchObject({
    server: 'berth',
    via: '1.1 berth',
    'fly-request-id': json(reply)['fly-request-id'],
  })
})

test('response headers are set and removed as the port says, or left pristine', async () => {
  const rules = (response: object) => ({
    service: { ports: [{ port: 80, handlers: ['http'], http_options: { response } }] },
  })
  const answer = (_request: IncomingMessage, reply: ServerResponse) => {
    reply.writeHead(200, { server: 'mine', 'x-gone': '1', 'x-kept': '2' }).end('body')
  }
  const changed = await edge.app()
  const headers = {
    'X-Gone': false,
    'x-added': 'yes',
    'x-both': ['a', 'b'],
    'fly-request-id': false,
    'content-length': '1',
  }
  await edge.backendOf(changed, answer, rules({ headers }))
  const reply = await ask(changed)
  expect(reply).toMatchObject({
    body: 'body',
    headers: { 'x-kept': '2', 'x-added': 'yes', 'x-both': 'a, b', server: 'berth' },
  })
  expect(Object.keys(reply.headers)).not.toContain('x-gone')
  expect(Object.keys(reply.headers)).not.toContain('fly-request-id')
  const pristine = await edge.app()
  await edge.backendOf(pristine, answer, rules({ pristine: true }))
  const plain = await ask(pristine)
  expect(plain.headers).toMatchObject({ server: 'mine', 'x-gone': '1' })
  for (const name of ['via', 'fly-request-id']) expect(Object.keys(plain.headers)).not.toContain(name)
})

test('a port that forces HTTPS redirects to it', async () => {
  const app = await edge.app()
  await edge.backendOf(app, say('secret'), {
    service: { ports: [{ port: 80, handlers: ['http'], force_https: true }] },
  })
  const reply = await ask(app, { path: '/a?b=1' })
  expect([reply.status, reply.headers.location]).toEqual([301, `https://${app}.app.test/a?b=1`])
  expect((await ask(app, { headers: { 'x-forwarded-proto': 'https' } })).status).toBe(301)
})

test('a WebSocket works in both directions and counts as load', async () => {
  const app = await edge.app()
  const backend = await edge.backendOf(app, say('http'))
  const sockets = new WebSocketServer({ server: backend.server })
  sockets.on('connection', (socket) => socket.on('message', (data, binary) => socket.send(data, { binary })))
  const client = new WebSocket(`ws://127.0.0.1:${edge.port}/`, { headers: { host: `${app}.app.test` } })
  await once(client, 'open')
  client.send('hello')
  expect(String((await once(client, 'message'))[0])).toBe('hello')
  const [target] = edge.table.apps.get(app)!.targets
  expect(target!.load).toBe(1)
  client.close()
  await until(() => target!.load === 0)
})

test('a dedicated address serves its app for every host name, a shared one by host name', async () => {
  const app = await edge.app({ ip: { ip: '127.0.7.1' } })
  await edge.backendOf(app, say('mine'))
  const shared = await edge.app()
  await edge.backendOf(shared, say('shared'))
  await edge.listen('127.0.7.1', edge.port)
  expect((await ask('anything.example', { host: '127.0.7.1' })).body).toBe('mine')
  expect((await ask(shared, { host: '127.0.7.1' })).body).toBe('mine')
  expect((await ask(app)).body).toBe('mine')
  expect((await ask(shared)).body).toBe('shared')
})

test('a port without handlers relays bytes, whichever side sends first', async () => {
  const app = await edge.app({ ip: { ip: '127.0.7.2' } })
  const echo = createTcpServer((socket) => {
    socket.write('hello ')
    socket.on('error', () => {})
    socket.pipe(socket)
  })
  await new Promise<void>((resolve) => echo.listen(0, '127.0.0.1', resolve))
  const internal = (echo.address() as { port: number }).port
  const port = await edge.listen('127.0.7.2')
  await edge.machine(app, { services: [{ internal_port: internal, protocol: 'tcp', ports: [{ port, handlers: [] }] }] })
  const socket = connect(port, '127.0.7.2')
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
  })
  await until(() => text === 'hello ')
  const large = randomBytes(500_000).toString('hex')
  socket.end(large)
  await once(socket, 'close')
  expect(text === `hello ${large}`).toBe(true)
  await until(() => edge.table.apps.get(app)!.targets[0]!.load === 0)
  echo.close()
})

test('a program gets the client address by the PROXY protocol if it asks for that', async () => {
  const app = await edge.app({ ip: { ip: '127.0.7.3' } })
  const told: string[] = []
  const server = createTcpServer((socket) =>
    socket.once('data', (data) => told.push(String(data)) && socket.end('bye')),
  )
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const port = await edge.listen('127.0.7.3')
  const internal = (server.address() as { port: number }).port
  await edge.machine(app, { services: [{ internal_port: internal, ports: [{ port, handlers: ['proxy_proto'] }] }] })
  const socket = connect({ port, host: '127.0.7.3', localAddress: '127.0.0.77' })
  await once(socket, 'connect')
  const from = socket.localPort
  socket.resume()
  await once(socket, 'close')
  expect(told[0]).toBe(`PROXY TCP4 127.0.0.77 127.0.7.3 ${from} ${port}\r\n`)
  server.close()
})

test('no request fails while two machines are replaced one after another', async () => {
  const app = await edge.app()
  const backends = [await edge.backendOf(app, say('old')), await edge.backendOf(app, say('old'))]
  let isOver = false
  const replies: number[] = []
  const asking = Array.from({ length: 8 }, async () => {
    while (!isOver) replies.push((await ask(app, { method: replies.length % 2 ? 'GET' : 'PUT', body: 'x' })).status)
  })
  for (const { id, port, server } of backends) {
    await until(() => replies.length > 50)
    await sql(`update machine set state = 'replacing' where id = $1`, [id])
    server.close()
    server.closeIdleConnections()
    await once(server, 'close')
    const version = randomBytes(4).toString('hex')
    await sql(`update machine set instance_id = $2, state = 'starting' where id = $1`, [id, version])
    await edge.backend(say('new'), port)
    await sql(`update machine set state = 'started' where id = $1`, [id])
    replies.length = replies.every((status) => status === 200) ? 0 : replies.length
  }
  await until(() => replies.length > 50)
  isOver = true
  await Promise.all(asking)
  expect(replies.filter((status) => status !== 200)).toEqual([])
  expect((await ask(app)).body).toBe('new')
})
