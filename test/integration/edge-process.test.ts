import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import { type AddressInfo, connect, createServer as createTcpServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { EdgeSettings } from '../../src/edge/settings.ts'
import { useDatabase } from '../support/db.ts'
import { until } from '../support/until.ts'

const database = useDatabase()
const directory = mkdtempSync(join(tmpdir(), 'berth-edge-'))
const program = new URL('../../src/main/edge.ts', import.meta.url).pathname
// Loopback addresses that no other test takes.
const address = `127.77.${process.pid % 250}.1`
const opened: Server[] = []
let edge: ChildProcess
let port: number
let log = ''
let slot = 1023

async function freePort(): Promise<number> {
  const server = createTcpServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

function settings(): EdgeSettings {
  return {
    version: 'test',
    host: '127.0.0.1',
    port,
    workers: 2,
    sandboxDomain: 'sandbox.test',
    domain: 'app.test',
    boxes: 'host',
    database: database.config,
    tls: null,
    ownTls: null,
    certificateKey: Buffer.alloc(32).toString('base64'),
    region: 'local',
    pools: [],
    names: null,
    autostopSeconds: 1,
    uid: null,
    maxConnections: 1_000,
    logLevel: 'info',
  }
}

beforeAll(async () => {
  port = await freePort()
  await database.db.query(`insert into org (id, slug, name) values ('acme', 'acme', 'acme')`)
  const file = join(directory, 'edge.json')
  writeFileSync(file, JSON.stringify(settings()))
  edge = spawn(process.execPath, [program, file], { stdio: ['ignore', 'pipe', 'pipe'] })
  for (const stream of [edge.stdout!, edge.stderr!]) {
    stream.on('data', (text) => {
      log += text
    })
  }
  await until(() => log.includes('listening'))
})

afterEach(async () => {
  for (const server of opened.splice(0)) {
    if ('closeAllConnections' in server) (server as ReturnType<typeof createServer>).closeAllConnections()
    server.close()
  }
})

afterAll(async () => {
  if (edge.exitCode === null) {
    edge.kill('SIGTERM')
    await once(edge, 'exit')
  }
  rmSync(directory, { recursive: true, force: true })
})

async function app(ip: string, shared = false): Promise<string> {
  const name = `a-${randomBytes(5).toString('hex')}`
  await database.db.query(
    `insert into app (id, org_id, name, network, enable_subdomains) values ($1, 'acme', $1, 'default', false)`,
    [name],
  )
  await database.db.query('insert into ip (app_id, ip, type, shared) values ($1, $2, $3, $4)', [
    name,
    ip,
    shared ? 'shared_v4' : 'v4',
    shared,
  ])
  return name
}

async function machine(appName: string, services: object[], state = 'started'): Promise<string> {
  const id = randomBytes(7).toString('hex')
  slot -= 1
  await database.db.query(
    `with net as (
       insert into network (org_id, name) values ('acme', 'default')
       on conflict (org_id, name) do update set name = excluded.name returning number)
     insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted, slot)
     select $1, $2, $1, $3, 'local', 'v' || $1, $4, number, true, $5 from net`,
    [id, appName, state, { image: 'none', services }, slot],
  )
  return id
}

async function backend(answer: (request: IncomingMessage, reply: ServerResponse) => void): Promise<number> {
  const server = createServer(answer)
  opened.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return (server.address() as AddressInfo).port
}

const web = (internal: number, extra: object = {}) => ({
  internal_port: internal,
  protocol: 'tcp',
  ports: [{ port: 80, handlers: ['http'] }],
  ...extra,
})

async function ask(host: string, at = '127.0.0.1', to = port): Promise<{ status: number; body: string }> {
  const call = request({ host: at, port: to, agent: false, headers: { host } }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  let body = ''
  for await (const chunk of reply) body += chunk
  return { status: reply.statusCode!, body }
}

const asked = (host: string, at?: string, to?: number) => ask(host, at, to).catch(() => ({ status: 0, body: '' }))

test('addresses of apps answer as they come and go, on the port of the edge and on their own', async () => {
  const name = await app(address)
  const [internal, raw, own] = [await backend((_, reply) => reply.end('mine')), createTcpServer(), await freePort()]
  raw.on('connection', (socket) => socket.end('bytes'))
  opened.push(raw)
  await new Promise<void>((resolve) => raw.listen(0, '127.0.0.1', resolve))
  await machine(name, [
    web(internal, {
      ports: [
        { port: 80, handlers: ['http'] },
        { port: own + 1, handlers: ['http'] },
      ],
    }),
    { internal_port: (raw.address() as AddressInfo).port, ports: [{ port: own }] },
  ])
  await until(async () => (await asked('whatever.test', address)).body === 'mine')
  await until(async () => (await asked('whatever.test', address, own + 1)).body === 'mine')
  expect((await ask(`${name}.app.test`)).body).toBe('mine')
  const socket = connect(own, address)
  let text = ''
  for await (const chunk of socket) text += chunk
  expect(text).toBe('bytes')
  await database.db.query('delete from ip where app_id = $1', [name])
  await until(async () => (await asked('whatever.test', address)).status === 0)
  expect((await ask(`${name}.app.test`)).status).toBe(404)
})

test('a machine without anything to do is stopped by the edge, and started again by a request', async () => {
  const name = await app('127.0.0.9', true)
  const internal = await backend((_, reply) => reply.end('awake'))
  const service = web(internal, { autostop: 'stop', autostart: true })
  const [idle, kept] = [await machine(name, [service]), await app('127.0.0.9', true)]
  await machine(kept, [{ ...service, min_machines_running: 1 }])
  const stateOf = async () => (await database.db.query('select state from machine where id = $1', [idle])).rows[0].state
  await until(async () => (await asked(`${name}.app.test`)).body === 'awake')
  await until(async () => (await stateOf()) === 'stopping')
  const { rows } = await database.db.query('select source, status from machine_event where machine_id = $1', [idle])
  expect(rows).toEqual([{ source: 'proxy', status: 'stopping' }])
  await database.db.query(`update machine set state = 'stopped' where id = $1`, [idle])
  const held = ask(`${name}.app.test`)
  await until(async () => (await stateOf()) === 'starting')
  await database.db.query(`update machine set state = 'started' where id = $1`, [idle])
  expect((await held).body).toBe('awake')
  const others = await database.db.query('select state from machine where app_id = $1', [kept])
  expect(others.rows).toEqual([{ state: 'started' }])
})

test('no request fails when the workers are replaced', async () => {
  const name = await app('127.0.0.9', true)
  await machine(name, [web(await backend((_, reply) => reply.end('here')))])
  await until(async () => (await asked(`${name}.app.test`)).body === 'here')
  let isOver = false
  const answers: string[] = []
  const asking = Array.from({ length: 4 }, async () => {
    while (!isOver) answers.push((await ask(`${name}.app.test`)).body)
  })
  const listening = () => log.split('listening').length
  for (let round = 0; round < 2; round++) {
    const before = listening()
    edge.kill('SIGHUP')
    await until(() => listening() > before)
    const count = answers.length
    await until(() => answers.length > count + 50)
  }
  isOver = true
  await Promise.all(asking)
  expect(answers.filter((body) => body !== 'here')).toEqual([])
})
