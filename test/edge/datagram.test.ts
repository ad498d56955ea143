// UDP through a proxy in this process, with short timeouts and access to its state.
import { createSocket, type Socket } from 'node:dgram'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Target } from '../../src/edge/routing/target.ts'
import { DatagramProxy } from '../../src/edge/udp/datagram-proxy.ts'
import { startEcho, startTalker, type Talker } from '../support/datagram.ts'
import { type NewMachine, useEdge } from '../support/edge.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

const edge = useEdge()
const opened: { close(): void }[] = []
const sockets = new Map<string, Socket>()
let proxy: DatagramProxy
let addresses = 0

/** While this is true, ports cannot be bound. */
let isTaken = false

beforeEach(() => {
  isTaken = false
  proxy = start(60_000)
})

afterEach(() => {
  proxy.close()
  sockets.clear()
  for (const each of opened.splice(0)) each.close()
})

function start(idleTimeoutMs: number): DatagramProxy {
  return new DatagramProxy({
    apps: edge.table.apps,
    balancer: edge.balancer,
    worker: { index: 0, count: 1 },
    async open(name) {
      if (isTaken) return undefined
      const [address, port] = name.split(' ')
      const socket = createSocket('udp4')
      await new Promise<void>((resolve) => socket.bind(Number(port), address, resolve))
      sockets.set(name, socket)
      return socket
    },
    maxFlows: 100,
    idleTimeoutMs,
    contendedIdleTimeoutMs: 1,
  })
}

function restart(idleTimeoutMs: number): void {
  proxy.close()
  proxy = start(idleTimeoutMs)
}

async function serve(names: string[], machine: NewMachine = {}) {
  addresses += 1
  const [address, port] = [`127.79.${process.pid % 250}.${addresses}`, await freePort()]
  const app = await edge.app({ ip: { ip: address } })
  const programs: Awaited<ReturnType<typeof startEcho>>[] = []
  const machines: string[] = []
  for (const name of names) {
    const program = await startEcho(name)
    opened.push(program)
    programs.push(program)
    const service = { protocol: 'udp', internal_port: program.port, ports: [{ port }], ...machine.service }
    machines.push(await edge.machine(app, { ...machine, services: [service] }))
  }
  proxy.update()
  const talk = async (): Promise<Talker> => {
    const client = await startTalker(address, port)
    opened.push(client)
    return client
  }
  const target = (index: number): Target => edge.table.apps.get(app)!.targets[index]!
  return { app, address, port, programs, machines, talk, target }
}

const nameOf = async (client: Talker, word: string) => (await client.ask(word)).text.split(' ')[0]

test('a client counts as load until its flow is idle', async () => {
  restart(500)
  const { talk, target } = await serve(['one'])
  const client = await talk()
  await client.ask('hello')
  expect(target(0)).toMatchObject({ load: 1, peak: 1 })
  await until(() => target(0).load === 0)
  expect((await client.ask('again')).text).toBe('one again')
})

test('at the hard limit an idle client gives way to a waiting one', async () => {
  const { talk, target } = await serve(['one'], { service: { concurrency: { hard_limit: 1 } } })
  const [first, second] = [await talk(), await talk()]
  await first.ask('hello')
  expect((await second.ask('hello')).text).toBe('one hello')
  expect(target(0).load).toBe(1)
})

test('clients of a machine that is cordoned or fails its checks move to another, if there is one', async () => {
  const config = { checks: { up: { type: 'tcp', port: 1, kind: 'readiness' } } }
  const { app, talk, machines } = await serve(['one', 'two'], { config })
  const { db } = edge.database
  const clients = [await talk(), await talk()]
  const answering = async (word: string) => [await nameOf(clients[0]!, word), await nameOf(clients[1]!, word)]
  const open = () =>
    edge.table.apps
      .get(app)!
      .targets.filter(({ isOpen }) => isOpen)
      .map(({ machineId }) => machineId)
  await db.query(
    `insert into machine_check (machine_id, name, status) select id, 'up', 'passing' from machine where app_id = $1`,
    [app],
  )
  await until(() => open().length === 2)
  expect((await answering('first')).sort()).toEqual(['one', 'two'])
  await db.query('update machine set cordoned = true where id = $1', [machines[0]])
  await until(() => open().join() === machines[1])
  expect(await answering('second')).toEqual(['two', 'two'])
  await db.query('update machine set cordoned = false where id = $1', [machines[0]])
  await db.query(`update machine_check set status = 'critical' where machine_id = $1`, [machines[1]])
  await until(() => open().join() === machines[0])
  expect(await answering('third')).toEqual(['one', 'one'])
  await db.query('update machine set cordoned = true where id = $1', [machines[0]])
  await until(() => open().length === 0)
  expect(await answering('fourth')).toEqual(['one', 'one'])
})

test('datagrams without a machine and datagrams from port 0 are dropped', async () => {
  const { address, port, talk, programs, target } = await serve(['one'])
  const asleep = await serve(['never'], { state: 'stopped', service: { autostart: false } })
  await until(() => sockets.has(`${address} ${port}`) && sockets.has(`${asleep.address} ${asleep.port}`))
  ;(await asleep.talk()).say('hello')
  sockets.get(`${address} ${port}`)!.emit('message', Buffer.from('forged'), { address: '127.0.0.1', port: 0 })
  await (await talk()).ask('hello')
  expect([target(0).load, asleep.target(0).load]).toEqual([1, 0])
  expect(new Set(programs[0]!.heard.map(({ text }) => text))).toEqual(new Set(['hello']))
})

test('only the first datagrams of a flow are kept for a program that does not listen yet', async () => {
  const { address, port, programs, talk, target } = await serve(['one'])
  await until(() => sockets.has(`${address} ${port}`))
  programs[0]!.close()
  opened.splice(opened.indexOf(programs[0]!), 1)
  const clients = await Promise.all(Array.from({ length: 40 }, () => talk()))
  for (let count = 0; count < 12; count++) for (const client of clients) client.say(`${count}`)
  await until(() => target(0).failures > 0)
  const program = await startEcho('late', programs[0]!.port)
  opened.push(program)
  await until(() => clients.every(({ heard }) => heard.length > 0))
  for (const heard of Map.groupBy(program.heard, ({ from }) => from).values())
    expect(heard.length).toBeLessThanOrEqual(8)
})

test('the flows of an address end when the app loses it', async () => {
  const { app, talk, target } = await serve(['one'])
  await (await talk()).ask('hello')
  expect(target(0).load).toBe(1)
  await edge.database.db.query('delete from ip where app_id = $1', [app])
  await until(() => edge.table.apps.get(app)?.addresses.length === 0)
  proxy.update()
  expect(target(0).load).toBe(0)
})

test('a port that cannot be bound is tried again', async () => {
  isTaken = true
  const { talk } = await serve(['one'])
  const client = await talk()
  client.say('hello')
  await until(() => client.errors.length > 0)
  isTaken = false
  proxy.update()
  expect((await client.ask('hello')).text).toBe('one hello')
})
