import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { collectImages } from '../../../src/reconcile/app/image-collection.ts'
import { type Checker, startChecker } from '../../../src/reconcile/app/machine-check.ts'
import { type MachineFeed, machineFeed } from '../../../src/store/app/machine-feed.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const machines = machinesOf(platform, 'shop')
const web = { name: 'web', image: 'nginx' }
const app = { name: 'app', image: 'redis' }

beforeEach(async () => {
  await platform.createApp('shop')
})

/** Creates and starts a machine without an image of its own. */
const started = (...containers: object[]) => machines.started({}, { image: undefined, containers })

const fakeOf = (id: string) => platform.fake.machines.machines.get(id)!

const show = async (id: string) => (await machines.call('GET', id)).body

describe('a machine with containers', () => {
  test('needs no image, and shows that of its main container and the states of all', async () => {
    const id = await started(web, app)
    await machines.look()
    expect(await show(id)).toMatchObject({
      state: 'started',
      config: { image: 'redis' },
      image_ref: { repository: 'library/redis' },
      containers: [
        { name: 'web', state: 'running', restart_count: 0 },
        { name: 'app', state: 'running', restart_count: 0 },
      ],
    })
    await machines.call('POST', id, '/stop')
    await machines.settle()
    expect((await show(id)).containers).toEqual([
      { name: 'web', state: 'stopped', restart_count: 0 },
      { name: 'app', state: 'stopped', restart_count: 0 },
    ])
  })

  test('gives each container its program, environment, secrets, files and policies', async () => {
    await platform.call('POST', '/v1/apps/shop/secrets', { body: { values: { TOKEN: 'top', OTHER: 'else' } } })
    const id = await machines.started(
      {},
      {
        image: undefined,
        env: { SHARED: 'yes' },
        stop_config: { signal: 'SIGTERM', timeout: '7s' },
        containers: [
          {
            ...web,
            cmd: ['serve'],
            user: 'www',
            env: { OWN: '1' },
            secrets: [{ env_var: 'KEY', name: 'TOKEN' }],
            env_from: [{ env_var: 'ME', field_ref: 'id' }],
            files: [{ guest_path: '/etc/a', raw_value: 'aGk=' }],
            restart: { policy: 'always' },
            stop: { signal: 'SIGHUP', timeout: '3s' },
            depends_on: [{ name: 'app', condition: 'started' }],
          },
          app,
        ],
      },
    )
    const [first, second] = fakeOf(id).spec.containers
    expect(first).toMatchObject({
      argv: ['serve'],
      user: 'www',
      env: { SHARED: 'yes', OWN: '1', KEY: 'top', ME: id, FROM: 'image' },
      files: [{ path: '/etc/a', content: Buffer.from('hi') }],
      restart: { policy: 'always' },
      stop: { signal: 'SIGHUP', timeoutMs: 3000 },
      dependsOn: [{ name: 'app', condition: 'started' }],
    })
    expect(first!.env).not.toHaveProperty('OTHER')
    expect(second).toMatchObject({
      argv: ['/bin/program'],
      env: { SHARED: 'yes', TOKEN: 'top', OTHER: 'else' },
      files: [],
      restart: { policy: 'on-failure', maxRetries: 10 },
      stop: { signal: 'SIGTERM', timeoutMs: 7000 },
    })
    await machines.call('POST', id, '/stop')
    await machines.settle()
    expect(platform.fake.machines.lastStop).toEqual({ signal: 'SIGTERM', timeoutMs: 10_000 })
  })

  test('that names a secret the app does not have fails with the name of the container', async () => {
    const made = await machines.create({}, { image: undefined, containers: [{ ...web, secrets: [{ env_var: 'NO' }] }] })
    await machines.settle()
    expect(await show(made.body.id)).toMatchObject({ failure: expect.stringContaining('container web: ') })
  })

  test('whose image cannot be pulled says which', async () => {
    platform.fake.images.available = new Set(['docker.io/library/redis:latest'])
    const made = await machines.create({}, { image: undefined, containers: [web, app] })
    await machines.settle()
    expect((await show(made.body.id)).failure).toContain('container web: there is no image')
  })

  test('keeps the images of all its containers until it is removed', async () => {
    const id = await started(web, app)
    await collectImages(platform.fake.world(platform.database.db), Date.now())
    expect(platform.fake.images.pulled.size).toBe(2)
    await machines.call('DELETE', id, '?force=true')
    await machines.settle()
    await collectImages(platform.fake.world(platform.database.db), Date.now())
    expect(platform.fake.images.pulled.size).toBe(0)
  })

  test('records the exits of its containers and goes on, until it ends itself', async () => {
    const id = await started(web, app)
    const fake = platform.fake.machines
    fake.end(id, { container: 'web', exitCode: 3, restarting: true })
    await machines.look()
    const seen = await show(id)
    expect(seen).toMatchObject({ state: 'started', restart_count: 0, last_exit: { container: 'web', exit_code: 3 } })
    expect(seen).not.toHaveProperty('next_restart_at')
    expect(seen.events[0]).toMatchObject({
      type: 'exit',
      status: 'started',
      request: { exit_event: { container: 'web' } },
    })
    fake.end(id, { container: 'app', exitCode: 0 })
    fake.end(id, { exitCode: 0 })
    await machines.look()
    expect(await show(id)).toMatchObject({ state: 'stopped' })
  })

  test('is replaced by one program, and the other way round', async () => {
    const id = await started(web, app)
    const update = async (config: object) => {
      expect((await machines.call('POST', id, '', { body: { config } })).status).toBe(200)
      await machines.settle()
      return show(id)
    }
    expect(await update({ image: 'nginx' })).not.toHaveProperty('containers')
    expect(fakeOf(id).spec.containers).toEqual([])
    expect(await update({ containers: [app] })).toMatchObject({ image_ref: { repository: 'library/redis' } })
    expect(fakeOf(id).spec.containers).toMatchObject([{ name: 'app' }])
  })
})

describe('a command', () => {
  const run = (id: string, body: object) => machines.call('POST', id, '/exec', { body })
  const printName = { command: ['sh', '-c', 'echo $NAME'] }

  test('runs in the named container, or else in the main one', async () => {
    const id = await started({ ...web, env: { NAME: 'w', PATH: '/bin' } }, { ...app, env: { NAME: 'a', PATH: '/bin' } })
    expect((await run(id, { ...printName, container: 'web' })).body.stdout).toBe('w\n')
    expect((await run(id, printName)).body.stdout).toBe('a\n')
  })

  test('is refused for a container that does not exist or does not run, and outside of the containers', async () => {
    const id = await started(web, app)
    const refusal = async (body: object) => {
      const { status, body: answer } = await run(id, { ...printName, ...body })
      return [status, answer.error]
    }
    expect(await refusal({ container: 'db' })).toEqual([400, 'the machine has no container db; it has web, app'])
    expect(await refusal({ container: 'web', machine: true })).toEqual([
      400,
      'container and machine exclude each other',
    ])
    expect(await refusal({ machine: true })).toEqual([400, expect.stringContaining('name a container')])
    fakeOf(id).containers[0]!.state = 'pending'
    expect(await refusal({ container: 'web' })).toEqual([412, expect.stringContaining('the container web is pending')])
    const single = await machines.started()
    expect((await run(single, { ...printName, container: 'web' })).body.error).toBe(
      'the machine has no container web; it has none',
    )
  })
})

describe('health checks', () => {
  let server: Server
  let status = 200
  let checker: Checker
  let feed: MachineFeed

  beforeAll(async () => {
    server = createServer((_, reply) => reply.writeHead(status).end())
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  })
  afterAll(() => {
    server.closeAllConnections()
    server.close()
  })
  beforeEach(async () => {
    status = 200
    const made = platform.fake.world(platform.database.db)
    const isolation = async () => ({ kind: 'none', network: 'host' }) as const
    feed = machineFeed(() => platform.database.config)
    checker = startChecker({ ...made, machines: { ...made.machines, isolation } }, platform.database.config, feed)
  })
  afterEach(async () => {
    await checker.stop()
    await feed.close()
  })

  const http = () => ({ http: { port: (server.address() as AddressInfo).port } })

  test('of a container decide about its health, and their results are shown', async () => {
    const slow = { name: 'cmd', exec: { command: ['/bin/true'] }, interval: 1 }
    const up = { name: 'up', ...http(), interval: 1, grace_period: 0, failure_threshold: 2 }
    const id = await started({ ...web, healthchecks: [up, slow] }, app)
    await until(() => fakeOf(id).containers[0]!.health === 'healthy')
    expect(fakeOf(id).containers[1]!.health).toBeUndefined()
    const shown = async () =>
      (await show(id)).checks.map((found: { name: string; status: string }) => `${found.name} ${found.status}`)
    await until(async () => (await shown()).join() === 'web/cmd passing,web/up passing')
    status = 500
    await until(() => fakeOf(id).containers[0]!.health === 'unhealthy')
    await until(async () => (await shown()).join() === 'web/cmd passing,web/up critical')
  })

  test('start over with another run of the container', async () => {
    const id = await started({ ...web, healthchecks: [{ name: 'up', ...http(), interval: 1 }] })
    await until(() => fakeOf(id).containers[0]!.health === 'healthy')
    const container = fakeOf(id).containers[0]!
    container.run = 2
    delete container.health
    await until(() => fakeOf(id).containers[0]!.health === 'healthy')
  })

  test('do not count while the container has just been started', async () => {
    status = 500
    const checks = [{ name: 'up', ...http(), interval: 1, grace_period: 3600, failure_threshold: 1 }]
    const id = await started(
      { ...web, healthchecks: checks },
      { ...app, healthchecks: [{ ...checks[0], grace_period: 0 }] },
    )
    await until(() => fakeOf(id).containers[1]!.health === 'unhealthy')
    expect(fakeOf(id).containers[0]!.health).toBeUndefined()
  })
})
