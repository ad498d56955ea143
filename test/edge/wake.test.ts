import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http'
import pg from 'pg'
import { expect, inject, test } from 'vitest'
import { hashToken } from '../../src/model/account/token.ts'
import { insertToken } from '../../src/store/account/token.ts'
import { useEdge } from '../support/edge.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

// Long enough for a busy host; requests that wait must not time out here.
const edge = useEdge({ waitTimeoutMs: 40_000, maxConnections: 60 })
const hasty = useEdge({ waitTimeoutMs: 500 })
const alone = useEdge({ waitTimeoutMs: 500, hasControlPlane: false })

async function ask(host: string, headers: Record<string, string> = {}, { port } = edge) {
  const call = httpRequest({ host: '127.0.0.1', port, agent: false, headers: { host, ...headers } }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  let body = ''
  for await (const chunk of reply) body += chunk
  return { status: reply.statusCode!, body, error: body.startsWith('{') ? JSON.parse(body) : undefined }
}

const say = (text: string) => (_request: IncomingMessage, reply: ServerResponse) => void reply.end(text)

const isEnqueued = async (id: string) => {
  const { rows } = await edge.database.db.query(`select 1 from work where kind = 'sandbox' and resource_id = $1`, [id])
  return rows.length === 1
}

test('a request to a cold sandbox starts it and waits for its service', async () => {
  const port = await freePort()
  const host = await edge.sandbox({ name: 'sleeping', state: 'cold', port })
  const replies = Array.from({ length: 20 }, () => ask(host))
  await until(() => isEnqueued('sleeping'))
  const { rows } = await edge.database.db.query(`select state, last_running_at from sandbox where id = 'sleeping'`)
  expect(rows).toEqual([{ state: 'running', last_running_at: expect.anything() }])
  await edge.backend(say('awake'), port)
  expect((await Promise.all(replies)).every(({ status, body }) => status === 200 && body === 'awake')).toBe(true)
})

test('a request for a service that is down wakes it and waits', async () => {
  const port = await freePort()
  const host = await edge.sandbox({ name: 'crashed', port })
  const reply = ask(host)
  await until(() => isEnqueued('crashed'))
  await edge.backend(say('back'), port)
  expect(await reply).toMatchObject({ status: 200, body: 'back' })
})

test('a request for a service that does not start times out with a reason', async () => {
  const host = await hasty.sandbox({ port: await freePort() })
  const { status, error } = await ask(host, {}, hasty)
  expect([status, error.error]).toEqual([503, 'service_unavailable'])
  expect(error.message).toMatch(/the service web did not answer on port \d+ within 0.5 s/)
})

test('a request for a failed service wakes it, waits shortly, and reports why it fails', async () => {
  const host = await edge.sandbox({ name: 'failing', port: await freePort() })
  await edge.database.db.query(`update service set failure = 'exited with code 3' where sandbox_id = 'failing'`)
  await until(() => edge.table.findSandbox(host)?.service?.failure !== null)
  const started = performance.now()
  const { status, error } = await ask(host)
  expect([status, error]).toEqual([
    503,
    { error: 'service_failed', message: 'the service web of this sandbox fails: exited with code 3' },
  ])
  expect(performance.now() - started).toBeLessThan(30_000)
  expect(await isEnqueued('failing')).toBe(true)
})

test('a service that its user stopped is not started, and the request fails at once', async () => {
  const host = await edge.sandbox({ name: 'stopped', port: await freePort(), wanted: false })
  const started = performance.now()
  const { status, error } = await ask(host)
  expect([status, error.error]).toEqual([503, 'service_stopped'])
  expect(performance.now() - started).toBeLessThan(30_000)
  expect(await isEnqueued('stopped')).toBe(false)
})

test('a request fails at once if no service is known and nothing listens', async () => {
  const host = await edge.sandbox({})
  const started = performance.now()
  const { status, error } = await ask(host)
  expect([status, error]).toEqual([
    502,
    { error: 'bad_gateway', message: 'nothing in this sandbox listens on port 8080' },
  ])
  expect(performance.now() - started).toBeLessThan(30_000)
})

test('a request gets 404 when its sandbox is deleted while it waits', async () => {
  const host = await edge.sandbox({ name: 'leaving', port: await freePort() })
  const reply = ask(host)
  await until(() => isEnqueued('leaving'))
  await edge.database.db.query(`update sandbox set state = 'deleting' where id = 'leaving'`)
  expect((await reply).status).toBe(404)
})

test('a request for a stopped machine is told that the control plane may be down', async () => {
  const app = await alone.app()
  await alone.machine(app, { state: 'stopped', service: { autostart: true } })
  const reply = await ask(`${app}.app.test`, {}, alone)
  const message = `no stopped machine of ${app} was started within 0.5 s; the control plane, which starts machines, may be down`
  expect(reply).toMatchObject({ status: 503, error: { message } })
})

test('a service with a health check gets its first request when the check passes', async () => {
  let isHealthy = false
  const backend = await edge.backend((request, reply) => {
    if (request.url === '/health') reply.writeHead(isHealthy ? 200 : 503)
    reply.end('answer')
  })
  const check = { http: { path: '/health', port: backend.port } }
  const host = await edge.sandbox({ port: backend.port, health: { check } })
  const reply = ask(host)
  await until(() => backend.requests.filter(({ url }) => url === '/health').length > 2)
  expect(backend.requests.filter(({ url }) => url === '/')).toEqual([])
  isHealthy = true
  expect((await reply).status).toBe(200)
  const checks = backend.requests.filter(({ url }) => url === '/health').length
  expect((await ask(host)).status).toBe(200)
  expect(backend.requests.filter(({ url }) => url === '/health').length).toBe(checks)
})

test('a service with a command check gets its first request when the control plane has seen it pass', async () => {
  const backend = await edge.backend(say('answer'))
  const host = await edge.sandbox({ name: 'asked', port: backend.port, health: { check: { command: ['true'] } } })
  const setReady = (at: string) =>
    edge.database.db.query(`update service set ready_at = ${at} where sandbox_id = 'asked'`)
  const reply = ask(host)
  await until(() => isEnqueued('asked'))
  expect(backend.requests).toEqual([])
  await setReady('now()')
  expect(await reply).toMatchObject({ status: 200, body: 'answer' })
  expect((await ask(host)).status).toBe(200)

  // The check of the restarted program has to pass again.
  backend.server.closeAllConnections()
  await new Promise((resolve) => backend.server.close(resolve))
  await edge.database.db.query(`delete from work where resource_id = 'asked'`)
  const later = ask(host)
  await until(() => isEnqueued('asked'))
  const next = await edge.backend(say('next'), backend.port)
  await edge.database.db.query(`delete from work where resource_id = 'asked'`)
  await until(() => isEnqueued('asked'))
  expect(next.requests).toEqual([])
  await setReady('now()')
  expect(await later).toMatchObject({ status: 200, body: 'next' })
  await setReady('null')
  await until(() => edge.table.findSandbox(host)?.service?.readyAtMs === null)
})

test('connections above the limit get a 503', async () => {
  const sockets = Array.from({ length: 60 }, () => edge.connect())
  await Promise.all(sockets.map((socket) => (socket.connecting ? once(socket, 'connect') : undefined)))
  // Connections are accepted in order, so those above have been accepted before this one.
  const answer = await edge.raw('')
  expect(answer).toMatch(/^HTTP\/1.1 503 /)
  expect(answer).toContain('too many connections')
  for (const socket of sockets) socket.destroy()
  await until(async () => (await ask('nobody.sandbox.test').catch(() => undefined))?.status === 404)
})

test('known routes are served without the state database, and changes take effect when it is back', async () => {
  const backend = await edge.backend(say('here'))
  const open = await edge.sandbox({ name: 'lasting', port: backend.port })
  const locked = await edge.sandbox({ auth: 'sprite', port: backend.port })
  const authorization = 'Bearer berth_known'
  const id = 'known'
  const shared = { id, kind: 'root', orgId: null, sandbox: null, name: '', expiresInSeconds: null } as const
  await insertToken(edge.database.db, { ...shared, hash: hashToken('berth_known') })
  expect((await ask(locked, { authorization })).status).toBe(200)

  const admin = new pg.Client({ ...inject('server'), database: 'postgres' })
  await admin.connect()
  const name = edge.database.config.database!
  try {
    await admin.query(`alter database ${name} allow_connections false`)
    await admin.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [name])
    for (let round = 0; round < 3; round++) {
      expect((await ask(open)).body).toBe('here')
      expect((await ask(locked, { authorization })).status).toBe(200)
    }
    expect((await ask(locked, { authorization: 'Bearer berth_other' })).status).toBe(503)
  } finally {
    await admin.query(`alter database ${name} allow_connections true`)
    await admin.end()
  }
  await until(async () => {
    const changed = edge.database.db.query(`update sandbox set url_auth = 'sprite' where id = 'lasting'`)
    return changed.then(
      () => true,
      () => false,
    )
  })
  await until(async () => (await ask(open)).status === 401)
})
