import { once } from 'node:events'
import { request } from 'node:http'
import { connect } from 'node:net'
import { expect, test } from 'vitest'
import { useEdgeProcess, web } from '../support/edge-process.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

const edge = useEdgeProcess({ isSupervised: true })
let apps = 0

interface Failure {
  code: string | undefined
  beganAt: number
}

/** Sends requests, each on a new connection. */
function startTraffic(host: string, targets: { at: string; port: number }[]) {
  const failures: Failure[] = []
  let count = 0
  let isOver = false
  async function ask({ at, port }: { at: string; port: number }): Promise<void> {
    const beganAt = performance.now()
    try {
      const call = request({ host: at, port, agent: false, headers: { host } }).end()
      const [reply] = await once(call, 'response')
      await once(reply.resume(), 'end')
      if (reply.statusCode === 200) count += 1
      else failures.push({ code: String(reply.statusCode), beganAt })
    } catch (error) {
      failures.push({ code: (error as NodeJS.ErrnoException).code, beganAt })
    }
  }
  const runs = Array.from({ length: 8 }, async (_, index) => {
    while (!isOver) await ask(targets[index % targets.length]!)
  })
  return {
    count: () => count,
    async stop(): Promise<Failure[]> {
      isOver = true
      await Promise.all(runs)
      return failures
    },
  }
}

interface App {
  name: string
  /** A loopback address that no other test uses. */
  address: string
  port: number
}

async function makeApp(): Promise<App> {
  apps += 1
  const address = `127.79.${process.pid % 250}.${apps}`
  const name = await edge.app(address)
  const port = await freePort()
  const internal = await edge.backend((_, reply) => reply.end('here'))
  await edge.machine(name, [web(internal, { ports: [{ port, handlers: ['http'] }] })])
  await edge.untilAnswered('here', 'any.test', address, port)
  return { name, address, port }
}

async function deleteApp(name: string): Promise<void> {
  await edge.database.db.query('delete from ip where app_id = $1', [name])
}

function isRefused(at: string, port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = connect({ host: at, port })
  socket.once('connect', () => resolve(false))
  socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code === 'ECONNREFUSED'))
  return promise.finally(() => socket.destroy())
}

const kills: [string, () => (number | undefined)[]][] = [
  ['the edge process', () => [edge.process.pid]],
  ['a worker', () => edge.listWorkers().slice(0, 1)],
  ['every worker', () => edge.listWorkers()],
  ['the edge process and its workers', () => [edge.process.pid, ...edge.listWorkers()]],
]

test.each(kills)('a kill of %s refuses no connection, and later requests succeed', async (_, list) => {
  const app = await makeApp()
  await until(() => edge.listHeld().includes(`app ${app.address} ${app.port}`))
  const targets = [
    { at: '127.0.0.1', port: edge.port },
    { at: app.address, port: app.port },
  ]
  const traffic = startTraffic(`${app.name}.app.test`, targets)
  await until(() => traffic.count() > 100)
  await until(() => edge.listWorkers().length === 2)
  const pids = list()
  for (const pid of pids) process.kill(pid!, 'SIGKILL')
  const killedAt = performance.now()
  await until(() => edge.listWorkers().filter((pid) => !pids.includes(pid)).length === 2)
  const before = traffic.count()
  await until(() => traffic.count() > before + 200)
  const failures = await traffic.stop()
  expect(failures.filter(({ code, beganAt }) => code === 'ECONNREFUSED' || beganAt > killedAt)).toEqual([])
  await deleteApp(app.name)
  await until(() => isRefused(app.address, app.port))
})

test('an address that was removed while the edge was down refuses connections', async () => {
  const app = await makeApp()
  await until(() => edge.listHeld().includes(`app ${app.address} ${app.port}`))
  const before = edge.process
  before.kill('SIGKILL')
  await deleteApp(app.name)
  await until(() => isRefused(app.address, app.port))
  await until(() => !edge.listHeld().some((name) => name.startsWith(`app ${app.address} `)))
  expect(edge.process).not.toBe(before)
})

test('an address that is removed and added again is served', async () => {
  const app = await makeApp()
  await deleteApp(app.name)
  await until(() => isRefused(app.address, app.port))
  await edge.give(app.name, app.address)
  await edge.untilAnswered('here', 'any.test', app.address, app.port)
})

test('the holder has all sockets again after it was killed', async () => {
  const app = await makeApp()
  const names = [`app ${app.address} ${app.port}`, `edge 127.0.0.1 ${edge.port}`]
  const isHeld = () => names.every((name) => edge.listHeld().includes(name))
  await until(isHeld)
  const before = edge.holder!
  before.kill('SIGKILL')
  await until(() => edge.holder !== before && isHeld())
  const main = edge.process
  main.kill('SIGKILL')
  await once(main, 'exit')
  expect(await isRefused(app.address, app.port)).toBe(false)
  expect(await isRefused('127.0.0.1', edge.port)).toBe(false)
  await edge.untilAnswered('here', 'any.test', app.address, app.port)
})

test('another address of the edge takes effect, also after a restart', async () => {
  const app = await makeApp()
  const [first, second] = [edge.port, await freePort()]
  const isServed = () => edge.untilAnswered('here', 'any.test', app.address)
  await isServed()
  await edge.change({ host: '0.0.0.0' })
  await isServed()
  expect(await isRefused('127.0.0.2', first)).toBe(false)
  await edge.change({ port: second })
  expect(await isRefused('127.0.0.2', first)).toBe(true)
  await until(
    () =>
      edge
        .listHeld()
        .filter((name) => name.startsWith('edge '))
        .join() === `edge 0.0.0.0 ${second}`,
  )
  edge.write({ host: '127.0.0.1' })
  edge.process.kill('SIGKILL')
  await until(async () => (await isRefused('127.0.0.2', second)) && (await edge.asked('x.app.test')).status === 404)
  await isServed()
  expect(edge.listHeld().filter((name) => name.startsWith('edge '))).toEqual([`edge 127.0.0.1 ${second}`])
})
