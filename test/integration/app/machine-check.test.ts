import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Machine } from '../../../src/model/app/machine.ts'
import { listChecks } from '../../../src/model/app/machine-check-list.ts'
import { type Checker, startChecker } from '../../../src/reconcile/app/machine-check.ts'
import { runCheck } from '../../../src/reconcile/app/machine-check-run.ts'
import { loadMachine } from '../../../src/store/app/machine.ts'
import { type MachineFeed, machineFeed } from '../../../src/store/app/machine-feed.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const machines = machinesOf(platform, 'shop')
let server: Server
let port: number
let status = 200

beforeAll(async () => {
  server = createServer((request, reply) => {
    if (request.url === '/slow') return
    reply.writeHead(request.headers['x-key'] === 'wrong' ? 403 : status).end('as it is')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  port = (server.address() as AddressInfo).port
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
})

beforeEach(async () => {
  status = 200
  await platform.createApp('shop')
})

/** The fake driver runs machines on this host. */
function world() {
  const made = platform.fake.world(platform.database.db)
  return {
    ...made,
    machines: { ...made.machines, isolation: async () => ({ kind: 'none', network: 'host' }) as const },
  }
}

async function resultOf(check: object) {
  const id = await machines.started({}, { checks: { a: { port, ...check } } })
  const machine = (await loadMachine(platform.database.db, id)) as Machine
  return runCheck(world(), machine, listChecks(machine.config)[0]!)
}

describe('a check', () => {
  test('over HTTP passes with a 2xx answer', async () => {
    expect(await resultOf({ type: 'http' })).toEqual({ status: 'passing', output: 'HTTP 200: as it is' })
    status = 500
    expect(await resultOf({ type: 'http', path: '/x', method: 'post' })).toEqual({
      status: 'critical',
      output: 'HTTP 500: as it is',
    })
    const headers = [{ name: 'x-key', values: ['wrong'] }]
    expect(await resultOf({ type: 'http', headers })).toMatchObject({ output: expect.stringContaining('403') })
    expect(await resultOf({ type: 'http', path: '/slow', timeout: '100ms' })).toEqual({
      status: 'critical',
      output: 'no answer within 100 ms',
    })
    expect(await resultOf({ type: 'http', protocol: 'https' })).toMatchObject({ status: 'critical' })
    expect(await resultOf({ type: 'http', port: 1 })).toMatchObject({
      status: 'critical',
      output: expect.stringContaining('ECONNREFUSED'),
    })
  })

  test('over TCP passes when the connection succeeds', async () => {
    expect(await resultOf({ type: 'tcp' })).toEqual({ status: 'passing', output: 'connected' })
    expect(await resultOf({ type: 'tcp', port: 1 })).toMatchObject({ status: 'critical' })
  })

  test('fails without a connection while the program is down, even if something answers at the address', async () => {
    for (const is of ['waiting', 'down'] as const) {
      const id = await machines.started({}, { checks: { a: { type: 'tcp', port }, b: { type: 'http', port } } })
      platform.fake.machines.machines.get(id)!.is = is
      const machine = (await loadMachine(platform.database.db, id)) as Machine
      for (const check of listChecks(machine.config))
        expect(await runCheck(world(), machine, check)).toEqual({
          status: 'critical',
          output: 'the program of the machine is not running',
        })
    }
  })

  test('by a command passes when it exits with 0', async () => {
    expect(await resultOf({ type: 'exec', command: ['sh', '-c', 'exit 0'] })).toMatchObject({ status: 'passing' })
    expect(await resultOf({ type: 'exec', command: ['sh', '-c', 'exit 2'] })).toMatchObject({ status: 'critical' })
    expect(await resultOf({ type: 'exec', command: ['sleep', '100'], timeout: '100ms' })).toMatchObject({
      output: expect.stringContaining('did not exit'),
    })
    expect(await resultOf({ type: 'exec', command: ['/no/such'] })).toMatchObject({ status: 'critical' })
  })
})

describe('the checker', () => {
  let checker: Checker
  let feed: MachineFeed
  beforeEach(() => {
    feed = machineFeed(() => platform.database.config)
    checker = startChecker(world(), platform.database.config, feed)
  })
  afterEach(async () => {
    await checker.stop()
    await feed.close()
  })

  test('stores changed results of machine and service checks, and drops them when the machine stops', async () => {
    const check = { type: 'http', interval: '1s', grace_period: '0s' }
    const services = [{ internal_port: port, checks: [check] }]
    const id = await machines.started({}, { services, checks: { own: { ...check, port } } })
    const checks = async () => (await machines.call('GET', id)).body.checks
    const all = async (wanted: string) =>
      (await checks()).map((one: { status: string }) => one.status).join() === `${wanted},${wanted}`
    await until(() => all('passing'))
    expect((await checks()).map(({ name }: { name: string }) => name)).toEqual(['own', `servicecheck-00-http-${port}`])
    const [first] = await platform.sql('select xmin::text from machine_check order by name')
    status = 503
    await until(() => all('critical'))
    status = 200
    await until(() => all('passing'))
    expect((await platform.sql('select xmin::text from machine_check order by name'))[0]).not.toEqual(first)
    await machines.call('POST', id, '/stop')
    await machines.settle()
    expect(await checks()).toEqual([])
  })

  test('reports no failure within the grace period', async () => {
    status = 503
    const id = await machines.started(
      {},
      { checks: { own: { type: 'http', port, interval: '1s', grace_period: '1h' } } },
    )
    expect((await machines.call('GET', id)).body.checks).toMatchObject([{ name: 'own', status: 'warning' }])
    status = 200
    await until(async () => (await machines.call('GET', id)).body.checks[0].status === 'passing')
  })

  test('repeats a check quickly until it first passes, whatever the interval', async () => {
    status = 503
    const own = { type: 'http', port, interval: '1h', grace_period: '0s' }
    const id = await machines.started({}, { checks: { own } })
    const shown = async () => (await machines.call('GET', id)).body.checks[0].status
    await until(async () => (await shown()) === 'critical')
    status = 200
    await until(async () => (await shown()) !== 'critical')
    expect(await shown()).toBe('passing')
  })
})
