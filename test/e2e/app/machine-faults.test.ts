// Faults of programs, registries, clients and the platform's own processes, and how machines survive them.
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, globSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { type IncomingMessage, request, type ServerResponse } from 'node:http'
import { connect, type Socket } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { controlGroups, destroy, processesOf } from '../../support/client.ts'
import { busyboxImage, makeImage } from '../../support/image.ts'
import { fakeRegistry, partsOf, pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_EDGE_WORKERS: '2' })
let registry: Registry
let image: string
const patient = 'trap "exit 0" INT TERM; while :; do sleep 0.05; done'
const serving = 'echo well > /www/index.html; exec httpd -f -p 8080 -h /www'

beforeAll(async () => {
  registry = await startRegistry()
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', patient] }) })).reference
  await berth.up()
  await ok('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

type Json = ReturnType<typeof JSON.parse>

const ok = (method: string, path: string, body?: object) => berth.ok(method, path, body)

const machine = (id: string, app = 'shop') => `/v1/apps/${app}/machines/${id}`
const program = (text: string) => ({ init: { exec: ['sh', '-c', text] } })
const show = (id: string, app?: string) => ok('GET', machine(id, app))
const wait = (id: string, state: string, app?: string) =>
  ok('GET', `${machine(id, app)}/wait?state=${state}&timeout=60`)
const remove = (id: string) => ok('DELETE', `${machine(id)}?force=true`)
const exec = (id: string, text: string) => ok('POST', `${machine(id)}/exec`, { command: ['sh', '-c', text] })

async function make(config: object = {}, app = 'shop'): Promise<string> {
  return (await ok('POST', `/v1/apps/${app}/machines`, { config: { image, ...config } })).id
}

async function started(config: object = {}, app = 'shop'): Promise<string> {
  const id = await make(config, app)
  await wait(id, 'started', app)
  return id
}

async function lastExit(id: string): Promise<Json> {
  const events: Json[] = await ok('GET', `${machine(id)}/events?limit=50`)
  return events.find(({ type }) => type === 'exit')?.request.exit_event
}

/** Lists the processes of a machine, which share a variable in their environment. */
function insideOf(id: string): number[] {
  return globSync('/proc/[0-9]*/environ').flatMap((file) => {
    try {
      return readFileSync(file, 'utf8').includes(`FLY_MACHINE_ID=${id}\0`) ? [Number(file.split('/')[2])] : []
    } catch {
      return [] // the process has ended
    }
  })
}

function programsOf(id: string): number[] {
  return insideOf(id).filter((pid) => {
    try {
      return /^sh\0-c\0|^httpd\0/.test(readFileSync(`/proc/${pid}/cmdline`, 'utf8'))
    } catch {
      return false
    }
  })
}

function childrenOf(pid: number): number[] {
  const listing = execFileSync('ps', ['-eo', 'pid=,ppid='], { encoding: 'utf8' })
  const pairs = listing.trim().split('\n')
  return pairs
    .map((line) => line.trim().split(/\s+/).map(Number))
    .flatMap(([child, parent]) => (parent === pid ? [child!] : []))
}

/** Finds the s6-supervise process of a service. */
function keeperOf(service: string): number {
  const found = processesOf(`${berth.home}/tree/${service}`).find(({ pid, line }) => {
    return line === `${berth.home}/tree/${service}` && readFileSync(`/proc/${pid}/comm`, 'utf8') === 's6-supervise\n'
  })
  return found!.pid
}

async function expectNothingLeft(id: string): Promise<void> {
  await until(() => processesOf(id).length === 0 && insideOf(id).length === 0)
  await until(() => controlGroups(berth, `machine-${id}`).length === 0)
  await until(() => !existsSync(`${berth.home}/machine/${id}`))
  expect(readFileSync('/proc/mounts', 'utf8')).not.toContain(id)
}

function sizeOf(directory: string): number {
  const files = readdirSync(directory, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  return files.reduce((total, { parentPath, name }) => {
    return total + (statSync(`${parentPath}/${name}`, { throwIfNoEntry: false })?.size ?? 0)
  }, 0)
}

test('misbehaving programs are ended and block nothing else', async () => {
  const flood = 'while :; do dd if=/bin/busybox bs=1M count=1 2>/dev/null; done'
  const noisy = await started({ ...program(`trap "exit 0" INT TERM; ${flood}`), restart: { policy: 'no' } })
  const [deaf, forking, greedy, looping, crowded] = await Promise.all([
    started({ ...program('trap "" INT TERM; while :; do sleep 1; done'), stop_config: { timeout: '1s' } }),
    make({ ...program('(while :; do sleep 1; done) & exit 0'), restart: { policy: 'no' } }),
    make({ ...program('x=a; while :; do x=$x$x$x$x; done'), restart: { policy: 'no' } }),
    make({ ...program('exit 1'), restart: { policy: 'always' } }),
    // Enough memory for more processes than a machine may have.
    started({ guest: { cpus: 1, memory_mb: 2048 } }),
  ])

  await ok('POST', `${machine(deaf)}/stop`)
  await wait(deaf, 'stopped')
  expect(await lastExit(deaf)).toMatchObject({ signal: 9, requested_stop: true })

  await wait(forking, 'stopped')
  await until(() => insideOf(forking).length === 0)

  await wait(greedy, 'stopped')
  expect(await lastExit(greedy)).toMatchObject({ exit_code: 137, oom_killed: true })

  // Between two restarts there is no program to freeze.
  await until(async () => (await lastExit(looping))?.restarting === true)
  await ok('POST', `${machine(looping)}/suspend`)
  expect((await wait(looping, 'settled')).state).toMatch(/^(stopped|suspended)$/)

  const forked = await exec(crowded, 'i=0; while [ $i -lt 6000 ]; do sleep 30 & i=$((i+1)); done')
  expect(forked.stderr).toContain('fork')
  expect((await show(crowded)).state).toBe('started')

  await until(() => sizeOf(`${berth.home}/log/machine-${noisy}`) > 20_000_000)
  expect(sizeOf(`${berth.home}/log/machine-${noisy}`)).toBeLessThan(60_000_000)
  await ok('POST', `${machine(noisy)}/stop`)
  await wait(noisy, 'stopped')
  expect(await lastExit(noisy)).toMatchObject({ exit_code: 0, requested_stop: true })
  for (const id of [noisy, deaf, forking, greedy, looping, crowded]) await remove(id)
  for (const id of [noisy, deaf, forking, greedy, looping, crowded]) await expectNothingLeft(id)
})

test('after many concurrent commands a machine has one program, and its removal leaves nothing', async () => {
  const commands = [
    ['/start'],
    ['/stop'],
    ['/restart'],
    ['/suspend'],
    ['', { config: { image, stop_config: { timeout: '1s' } } }],
    ['/signal', { signal: 9 }],
    ['/exec', { command: ['true'] }],
  ] as const
  for (const policy of ['no', 'always']) {
    const id = await make({ restart: { policy }, stop_config: { timeout: '1s' } })
    const asked = Array.from({ length: 30 }, async (_, index) => {
      const [rest, body] = commands[(index * 5) % commands.length]!
      if (index % 3 > 0) await wait(id, 'settled')
      return (await berth.call('POST', `${machine(id)}${rest}`, body)).status
    })
    for (const status of await Promise.all(asked)) expect([200, 408, 409, 412]).toContain(status)
    await wait(id, 'settled')
    if ((await show(id)).state !== 'started') await ok('POST', `${machine(id)}/start`)
    await until(async () => (await exec(id, 'echo here').catch(() => undefined))?.stdout === 'here\n')
    await until(() => programsOf(id).length === 1)
    await remove(id)
    await wait(id, 'destroyed')
    await expectNothingLeft(id)
  }
})

test('images that cannot be pulled leave a reason and no partial layer', async () => {
  const spec = busyboxImage({ Cmd: ['sh', '-c', patient] })
  spec.layers.push({ files: [{ name: 'large', content: Buffer.alloc(2_000_000, 'x') }], compression: 'none' })
  const made = makeImage(spec)
  const large = made.layers[1]!
  let answer: (response: ServerResponse) => void = (response) => void response.writeHead(404).end()
  let isWhole = false
  const waiting: ServerResponse[] = []
  const begin = (response: ServerResponse) => {
    response.writeHead(200, { 'content-length': large.content.length }).write(large.content.subarray(0, 500_000))
    waiting.push(response)
  }
  const source = await fakeRegistry({ latest: made.manifest }, partsOf(made), (_request, response, path) => {
    if (isWhole || !path.includes(large.digest)) return false
    answer(response)
    return true
  })
  const reference = `${source.host}/large:latest`
  const kept = () =>
    globSync(`${berth.home}/image/{scratch/*,layer/{${large.digest.slice(7)},${large.diffId.slice(7)}}*}`)
  try {
    const changed = Buffer.from(large.content)
    changed[1000]! ^= 1
    for (const how of [
      (response: ServerResponse) => void response.writeHead(404).end(),
      (response: ServerResponse) => void response.writeHead(200).end(changed),
      (response: ServerResponse) => void response.writeHead(200).end(),
    ]) {
      answer = how
      const id = await make({ image: reference })
      await wait(id, 'destroyed')
      expect((await show(id)).failure).toMatch(/not found|digest|cannot be reached/)
      expect(kept()).toEqual([])
    }

    // While the registry stalls, commands to the machine still work, and the app can be deleted.
    answer = begin
    await ok('POST', '/v1/apps', { app_name: 'brief', org_slug: 'personal' })
    const [stopped, gone, left] = [
      await make({ image: reference }),
      await make({ image: reference }),
      await make({ image: reference }, 'brief'),
    ]
    await until(() => waiting.length > 0)
    await ok('POST', `${machine(stopped)}/stop`)
    await wait(stopped, 'stopped')
    await remove(gone)
    await wait(gone, 'destroyed')
    const refused = await berth.call('DELETE', '/v1/apps/brief')
    expect(refused).toMatchObject({ status: 422, body: { error: expect.stringContaining(left) } })
    expect((await berth.call('DELETE', '/v1/apps/brief?force=true')).status).toBe(202)
    await expectNothingLeft(left)

    // The control plane dies during a pull, and the registry works again.
    await ok('POST', `${machine(stopped)}/start`)
    isWhole = true
    await end(berth.children.at(-1)!)
    for (const response of waiting) response.destroy()
    await berth.up()
    await wait(stopped, 'started')

    await ok('POST', machine(stopped), { config: { image: `${registry.host}/nothing:here` } })
    expect((await wait(stopped, 'settled')).state).toBe('failed')
    expect((await show(stopped)).failure).toContain('not found')
    expect(insideOf(stopped)).toEqual([])
    await ok('POST', machine(stopped), { config: { image } })
    await wait(stopped, 'started')
    await remove(stopped)
  } finally {
    for (const response of waiting) response.destroy()
    await source.close()
  }
})

async function app(name: string, script: string): Promise<string> {
  await ok('POST', '/v1/apps', { app_name: name, org_slug: 'personal' })
  await ok('POST', `/v1/apps/${name}/ip_assignments`, { type: 'shared_v4' })
  const services = [{ protocol: 'tcp', internal_port: 8080, ports: [{ port: 80, handlers: ['http'] }] }]
  return started({ ...program(script), services, stop_config: { timeout: '1s' } }, name)
}

/** Returns status and body, or that the connection broke. */
async function visit(name: string, gone?: AbortSignal): Promise<string> {
  const { hostname, port } = new URL(berth.addresses.edge)
  const call = request({
    host: hostname,
    port,
    agent: false,
    headers: { host: `${name}.berth.localhost` },
    ...(gone && { signal: gone }),
  }).end()
  try {
    const [reply] = (await once(call, 'response')) as [IncomingMessage]
    let text = ''
    for await (const chunk of reply) text += chunk
    return `${reply.statusCode} ${text.trim()}`
  } catch {
    return 'broken'
  }
}

test('machines with bad answers and stalled clients affect only themselves', async () => {
  const answering = (text: string) =>
    `printf '#!/bin/sh\\n%s\\n' '${text}' > /tmp/answer; busybox chmod 755 /tmp/answer; while :; do nc -l -p 8080 -e /tmp/answer; done`
  await app('well', serving)
  await app('garbage', answering('echo what'))
  await app('half', answering('printf "HTTP/1.1 200 OK\\r\\ncontent-length: 99\\r\\n\\r\\nhalf"'))
  await app('silent', answering('sleep 1000'))
  await until(async () => (await visit('well')) === '200 well')
  await until(async () => (await visit('garbage')).startsWith('502'))
  await until(async () => (await visit('half')) === 'broken')

  const { hostname, port } = new URL(berth.addresses.edge)
  const gone = new AbortController()
  const unanswered = Array.from({ length: 300 }, () => visit('silent', gone.signal))
  const idle = await Promise.all(
    Array.from({ length: 2000 }, async (_, index) => {
      const socket: Socket = connect(Number(port), hostname).on('error', () => {})
      await once(socket, 'connect')
      if (index % 2 === 0) socket.write('GET / HTTP/1.1\r\nhost: well.berth.localhost\r\nx-a')
      return socket
    }),
  )
  try {
    for (let time = 0; time < 20; time++) expect(await visit('well')).toBe('200 well')
  } finally {
    gone.abort()
    for (const socket of idle) socket.destroy()
    await Promise.all(unanswered)
  }
  for (const name of ['garbage', 'half', 'silent']) await berth.call('DELETE', `/v1/apps/${name}?force=true`)
})

test('killed processes are restarted, and so is everything after a reboot', async () => {
  const [{ id: web }] = await ok('GET', '/v1/apps/well/machines')
  const keeper = keeperOf(`machine-${web}`)
  const [box] = childrenOf(keeper)
  for (const victim of [
    keeper,
    () => childrenOf(box!)[0] ?? childrenOf(childrenOf(keeperOf(`machine-${web}`))[0]!)[0]!,
  ]) {
    const [before] = programsOf(web)
    process.kill(typeof victim === 'number' ? victim : victim(), 'SIGKILL')
    await until(() => programsOf(web).length === 1 && programsOf(web)[0] !== before)
    await until(async () => (await visit('well')) === '200 well')
  }
  const edge = () => childrenOf(keeperOf('edge'))[0]!
  process.kill(childrenOf(edge())[0]!, 'SIGKILL')
  await until(async () => (await visit('well')) === '200 well')
  const main = edge()
  process.kill(main, 'SIGKILL')
  await until(async () => edge() !== undefined && edge() !== main && (await visit('well')) === '200 well')

  const tree = processesOf(`${berth.home}/tree`).find(({ line }) => line.includes('s6-svscan'))!
  process.kill(tree.pid, 'SIGKILL')
  const volume = (await ok('POST', '/v1/apps/shop/volumes', { name: 'data', size_gb: 1 })).id
  const mounts = [{ volume, path: '/data' }]
  const [holding, stopped, suspended] = await Promise.all([started({ mounts }), started(), started()])
  expect((await berth.call('POST', '/v1/apps/shop/machines', { config: { image, mounts } })).status).toBe(412)
  expect((await berth.call('DELETE', `/v1/apps/shop/volumes/${volume}`)).status).toBe(412)
  const full = await exec(
    holding,
    'dd if=/dev/zero of=/data/fill bs=1M count=1500; rm /data/fill; echo kept > /data/file; sync',
  )
  expect(full.stderr).toContain('No space left')
  await ok('PUT', `/v1/apps/shop/volumes/${volume}/extend`, { size_gb: 2 })
  expect((await show(holding)).state).toBe('started')
  await ok('POST', `${machine(stopped)}/stop`)
  await ok('POST', `${machine(suspended)}/suspend`)
  await wait(stopped, 'stopped')
  await wait(suspended, 'suspended')

  await end(berth.children.at(-1)!)
  await berth.cli('down')
  // Discarded files are deleted by a process that does not depend on the platform.
  await until(() => processesOf(berth.home).filter(({ line }) => !line.includes('vitest')).length === 0)
  expect(readFileSync('/proc/mounts', 'utf8')).not.toContain(berth.home)
  await berth.up()
  await until(async () => (await visit('well')) === '200 well')
  await until(() => programsOf(holding).length === 1)
  expect((await exec(holding, 'cat /data/file')).stdout).toBe('kept\n')
  await ok('POST', `${machine(holding)}/restart`)
  await wait(holding, 'started')
  expect((await exec(holding, 'df -m /data | tail -1')).stdout).toMatch(/^\S+ +1[5-9]\d\d /)
  expect((await show(stopped)).state).toBe('stopped')
  expect((await show(suspended)).state).toBe('suspended')
  expect([...insideOf(stopped), ...insideOf(suspended)]).toEqual([])
  await ok('POST', `${machine(suspended)}/start`)
  await wait(suspended, 'started')
  for (const id of [holding, stopped, suspended]) await remove(id)
  for (const id of [holding, stopped, suspended]) await expectNothingLeft(id)
})

test('all routes of an app reject tokens of another organization', async () => {
  await ok('POST', '/v1/orgs', { name: 'Other', slug: 'other' })
  const { token } = await ok('POST', '/v1/tokens', { kind: 'org', org_slug: 'other' })
  const headers = { authorization: `Bearer ${token}` }
  const id = await make({}, 'shop')
  const document = await ok('GET', '/openapi.json')
  const paths = Object.entries<object>(document.paths).filter(([path]) =>
    /^\/(api\/)?v1\/apps\/\{app_name\}/.test(path),
  )
  expect(paths.length).toBeGreaterThan(30)
  // A body that is valid for all routes.
  const secret = 'QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE='
  const body = {
    config: { image },
    command: ['true'],
    signal: 'SIGHUP',
    values: { A: 'b' },
    value: secret,
    metadata: { a: 'b' },
    hostname: 'a.example.com',
    fullchain: 'x',
    private_key: 'x',
    size_gb: 3,
    limit_mb: 256,
    amount_mb: 1,
    plaintext: secret,
    ciphertext: secret,
    signature: secret,
  }
  // This route refuses unknown fields.
  const policy = { name: 'a', selector: { all: true }, rules: [{ action: 'allow', direction: 'egress', ports: [] }] }
  for (const [path, methods] of paths) {
    const place = path
      .replace('{app_name}', 'shop')
      .replace('{machine_id}', id)
      .replaceAll(/\{\w+\}/g, 'a')
    const type = path.includes('secretkeys') ? 'hs256' : 'v4'
    for (const method of Object.keys(methods)) {
      const given = path.endsWith('network_policies') ? policy : { ...body, type, name: 'a' }
      const sent = ['get', 'delete'].includes(method) ? undefined : given
      const reply = await berth.call(method.toUpperCase(), place, sent, headers)
      expect([reply.status, reply.body.error], `${method} ${path}`).toEqual([403, 'unauthorized'])
    }
  }
  for (const place of ['machines', 'volumes']) {
    expect((await berth.call('GET', `/v1/orgs/personal/${place}`, undefined, headers)).status).toBe(404)
  }
  const query = '{ apps { nodes { name } } organizations { nodes { slug } } app(name: "shop") { id secrets { name } } }'
  const seen = (await berth.call('POST', '/graphql', { query }, headers)).body
  expect(seen.data).toEqual({ apps: { nodes: [] }, organizations: { nodes: [{ slug: 'other' }] }, app: null })
  expect((await show(id)).state).not.toBe('destroyed')
})
