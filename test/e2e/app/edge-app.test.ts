// Apps from a client's point of view: real machines behind the real edge, including updates.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { request as secureRequest } from 'node:https'
import { gunzipSync } from 'node:zlib'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_EDGE_WORKERS: '2', BERTH_AUTOSTOP_INTERVAL: '3s' })
let registry: Registry
let image: string
let edge: URL
const script = `echo "$VERSION $FLY_MACHINE_ID" > /www/index.html; seq 1 2000 > /www/list.txt
exec httpd -f -p 8080 -h /www`

beforeAll(async () => {
  registry = await startRegistry()
  image = (await pushImage(registry, { repository: 'web', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  await berth.up()
  edge = new URL(berth.addresses.edge)
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

const ok = (method: string, path: string, body?: object) => berth.ok(method, path, body)

async function makeApp(name: string): Promise<string> {
  await ok('POST', '/v1/apps', { app_name: name, org_slug: 'personal' })
  return (await ok('POST', `/v1/apps/${name}/ip_assignments`, { type: 'v4' })).ip
}

function config(version: string, service: object = {}): object {
  const ports = [
    { port: 80, handlers: ['http'] },
    { port: 443, handlers: ['tls', 'http'] },
  ]
  const checks = [{ type: 'http', method: 'get', path: '/', interval: '1s', timeout: '5s' }]
  return {
    image,
    env: { VERSION: version },
    services: [{ protocol: 'tcp', internal_port: 8080, ports, checks, ...service }],
  }
}

async function run(app: string, given: object, id = ''): Promise<string> {
  const path = `/v1/apps/${app}/machines`
  const made = await ok('POST', id ? `${path}/${id}` : path, { config: given })
  await ok('GET', `${path}/${made.id}/wait?state=started&version=${made.version}&timeout=60`)
  return made.id
}

async function body(reply: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of reply) text += chunk
  return text.trim()
}

async function ask(host: string, at = edge.hostname): Promise<{ status: number; body: string }> {
  const call = request({ host: at, port: edge.port, agent: false, headers: { host } }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  return { status: reply.statusCode!, body: await body(reply) }
}

test('an app answers at its address and host name, with a certificate of the local authority', async () => {
  const ip = await makeApp('front')
  const id = await run('front', config('v1'))
  await until(async () => (await ask('front.berth.localhost').catch(() => undefined))?.body === `v1 ${id}`)
  await until(async () => (await ask('whatever', ip).catch(() => undefined))?.body === `v1 ${id}`)
  await ok('POST', '/v1/apps/front/certificates/acme', { hostname: 'shop.example.com' })
  const ca = readFileSync(`${berth.home}/ca/ca.crt`)
  for (const servername of ['front.berth.localhost', 'shop.example.com']) {
    const options = {
      host: edge.hostname,
      port: edge.port,
      servername,
      ca,
      agent: false,
      headers: { host: servername },
    }
    const seen = async () => {
      const call = secureRequest(options).end()
      return body(((await once(call, 'response')) as [IncomingMessage])[0])
    }
    await until(async () => (await seen().catch(() => '')) === `v1 ${id}`)
  }
})

test('a port can have responses compressed and idle connections closed', async () => {
  await makeApp('small')
  const ports = [{ port: 80, handlers: ['http'], http_options: { compress: true, idle_timeout: 2 } }]
  const id = await run('small', config('v1', { ports }))
  await until(async () => (await ask('small.berth.localhost').catch(() => undefined))?.body === `v1 ${id}`)
  const agent = new Agent({ keepAlive: true })
  const headers = { host: 'small.berth.localhost', 'accept-encoding': 'gzip' }
  const call = request({ host: edge.hostname, port: edge.port, path: '/list.txt', agent, headers }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  const chunks: Buffer[] = []
  for await (const chunk of reply) chunks.push(chunk)
  expect(reply.headers).toMatchObject({ 'content-encoding': 'gzip', vary: 'Accept-Encoding' })
  expect(gunzipSync(Buffer.concat(chunks)).toString().trim().split('\n')).toHaveLength(2_000)
  await until(() => call.socket!.destroyed)
  agent.destroy()
})

test('an idle machine is stopped, and a request starts it', async () => {
  await makeApp('sleepy')
  const id = await run('sleepy', config('v1', { autostop: 'stop', autostart: true }))
  await ok('GET', `/v1/apps/sleepy/machines/${id}/wait?state=stopped&timeout=60`)
  expect((await ask('sleepy.berth.localhost')).body).toBe(`v1 ${id}`)
  const sources = (await ok('GET', `/v1/apps/sleepy/machines/${id}/events`))
    .filter(({ source }: { source: string }) => source === 'proxy')
    .map(({ type }: { type: string }) => type)
  expect(sources).toContain('start')
  expect(sources).toContain('stop')
})

test('no request fails while both machines are updated and the control plane is killed', async () => {
  await makeApp('busy')
  const machines = [await run('busy', config('v1')), await run('busy', config('v1'))]
  await until(async () => (await ask('busy.berth.localhost').catch(() => undefined))?.status === 200)
  let isOver = false
  const answers: string[] = []
  const visitors = Array.from({ length: 4 }, async () => {
    while (!isOver) {
      const { status, body } = await ask('busy.berth.localhost')
      answers.push(status === 200 ? body.split(' ')[0]! : `${status} ${body}`)
    }
  })
  for (const id of machines) await run('busy', config('v2'), id)
  const [control] = berth.children.slice(-1)
  await end(control!)
  const before = answers.length
  await until(() => answers.length > before + 20)
  await berth.up()
  isOver = true
  await Promise.all(visitors)
  expect(answers.filter((text) => text !== 'v1' && text !== 'v2')).toEqual([])
  expect(answers.at(-1)).toBe('v2')
})
