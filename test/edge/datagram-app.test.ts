// UDP through an edge process with two workers.
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { afterEach, expect, test } from 'vitest'
import { startEcho, startTalker, type Talker } from '../support/datagram.ts'
import { useEdgeProcess, web } from '../support/edge-process.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

const maxFlows = 200
const edge = useEdgeProcess({ settings: { maxFlows, autostopSeconds: 4 } })
const opened: { close(): void }[] = []
let addresses = 0

afterEach(() => {
  for (const each of opened.splice(0)) each.close()
})

/** Loopback addresses that no other test uses. */
function newAddress(): string {
  addresses += 1
  return `127.78.${process.pid % 250}.${addresses}`
}

const keep = <T extends { close(): void }>(each: T): T => {
  opened.push(each)
  return each
}
const echo = async (name: string, port?: number) => keep(await startEcho(name, port))
const talker = async (address: string, port: number) => keep(await startTalker(address, port))
const service = (internal: number, port: number, extra: object = {}) => ({
  protocol: 'udp',
  internal_port: internal,
  ports: [{ port }],
  ...extra,
})

/** Creates an app with a machine for each program. The app gets its address last. */
async function serve(names: string[], extra: object = {}) {
  const [address, port] = [newAddress(), await freePort()]
  const app = await edge.app(null)
  const programs = await Promise.all(names.map((name) => echo(name)))
  const machines: string[] = []
  for (const program of programs) machines.push(await edge.machine(app, [service(program.port, port, extra)]))
  await edge.give(app, address)
  return { app, address, port, programs, machines, talk: () => talker(address, port) }
}

async function setState(id: string, state: string): Promise<void> {
  await edge.database.db.query('update machine set state = $2 where id = $1', [id, state])
}

async function stateOf(id: string): Promise<string> {
  return (await edge.database.db.query('select state from machine where id = $1', [id])).rows[0].state
}

/** Returns the programs that answer, over enough datagrams to see all of them. */
async function whoAnswers(client: Talker): Promise<string[]> {
  const names = new Set<string>()
  for (let round = 0; round < 10; round++) {
    const { text } = await client.ask(randomBytes(4).toString('hex'))
    names.add(text.split(' ')[0]!)
  }
  return [...names]
}

test('responses come from the address that the client sent to, and each client stays with one machine', async () => {
  const { app, address, port, programs, talk } = await serve(['one', 'two'])
  const clients = [await talk()]
  expect((await clients[0]!.ask('hello')).from).toBe(`${address} ${port}`)
  for (let count = 1; count < 6; count++) {
    const client = await talk()
    await client.ask('hello')
    clients.push(client)
  }
  const answered = await Promise.all(clients.map(whoAnswers))
  expect(answered.map(({ length }) => length)).toEqual([1, 1, 1, 1, 1, 1])
  expect(answered.flat().sort()).toEqual(['one', 'one', 'one', 'two', 'two', 'two'])
  for (const { heard } of programs) expect(new Set(heard.map(({ from }) => from)).size).toBe(3)
  await edge.database.db.query('delete from ip where app_id = $1', [app])
  await until(() => {
    clients[0]!.say('anybody?')
    return clients[0]!.errors.includes('ECONNREFUSED')
  })
})

test('a port range works for UDP next to TCP services on the same ports', async () => {
  const [address, port] = [newAddress(), await freePort()]
  const app = await edge.app(address)
  const program = await echo('many')
  const internal = await edge.backend((_request, reply) => reply.end('of the web'))
  const ports = [{ start_port: port, end_port: port + 2, handlers: ['http'] }]
  await edge.machine(app, [service(program.port, port, { ports }), web(internal, { ports })])
  for (const each of [port, port + 2]) {
    const client = await talker(address, each)
    expect(await client.ask('hello')).toMatchObject({ text: 'many hello', from: `${address} ${each}` })
    await edge.untilAnswered('of the web', 'any', address, each)
  }
})

test('large datagrams are forwarded in both directions', async () => {
  const { programs, talk } = await serve(['large'])
  const client = await talk()
  await client.ask('hello')
  const bytes = randomBytes(65_507)
  await until(() => {
    client.say(bytes)
    return client.heard.some(({ bytes: length }) => length === bytes.length)
  })
  expect(programs[0]!.heard.some(({ text }) => text === String(bytes))).toBe(true)
  expect(client.heard.some(({ text }) => text === String(bytes))).toBe(true)
})

test('clients of a machine that stops move to another one', async () => {
  const { machines, programs, talk } = await serve(['one', 'two'])
  const clients = [await talk(), await talk()]
  for (const client of clients) await client.ask('hello')
  await setState(machines[0]!, 'stopping')
  await until(async () => {
    const answers = await Promise.all(clients.map(whoAnswers))
    return answers.every((names) => names.join() === 'two')
  })
  // The kernel of the machine rejects datagrams for a program that has exited.
  await setState(machines[0]!, 'started')
  programs[1]!.close()
  opened.splice(opened.indexOf(programs[1]!), 1)
  await until(async () => (await whoAnswers(clients[0]!)).join() === 'one')
})

test('the first datagrams wait for a machine that is started, and for a program that listens late', async () => {
  const [address, port, internal] = [newAddress(), await freePort(), await freePort()]
  const app = await edge.app(address)
  const id = await edge.machine(app, [service(internal, port)], 'stopped')
  const client = await talker(address, port)
  // Datagrams sent before the edge listens are lost.
  await until(async () => {
    client.say('wake up')
    return (await stateOf(id)) === 'starting'
  })
  for (let count = 0; count < 20; count++) client.say('more')
  const { rows } = await edge.database.db.query(
    'select type, status, source from machine_event where machine_id = $1',
    [id],
  )
  expect(rows).toEqual([{ type: 'start', status: 'starting', source: 'proxy' }])
  const late = await talker(address, port)
  late.say('late')
  await setState(id, 'started')
  const program = await echo('awake', internal)
  await until(() => [client, late].every(({ heard }) => heard.length > 0))
  expect(client.heard[0]!.text).toBe('awake wake up')
  expect(late.heard[0]!.text).toBe('awake late')
  // Only a few datagrams are kept.
  const perSource = Map.groupBy(program.heard, ({ from }) => from)
  expect(Math.max(...[...perSource.values()].map(({ length }) => length))).toBeLessThanOrEqual(8)
})

test('a client above the hard limit waits for another machine', async () => {
  const { app, port, talk, programs } = await serve(['one', 'two'], { concurrency: { soft_limit: 1, hard_limit: 1 } })
  const clients = [await talk(), await talk(), await talk()]
  const [first, second, third] = clients as [Talker, Talker, Talker]
  await first.ask('hello')
  await second.ask('hello')
  third.say('me too')
  // Datagrams are processed in order, so the earlier ones have been handled.
  await first.ask('again')
  await second.ask('again')
  expect(programs.flatMap(({ heard }) => heard).filter(({ text }) => text === 'me too')).toEqual([])
  const further = await echo('three')
  await edge.machine(app, [service(further.port, port)])
  // The clients must not become idle, or they would give way to the waiting one.
  await until(() => {
    for (const client of [first, second]) client.say('still here')
    return third.heard.some(({ text }) => text === 'three me too')
  })
  expect(await Promise.all(clients.map(whoAnswers))).toEqual([
    [expect.stringMatching(/one|two/)],
    [expect.stringMatching(/one|two/)],
    ['three'],
  ])
})

test('a flood of new clients does not displace proven ones', async () => {
  const { programs, talk } = await serve(['flooded'])
  const [other, known] = [await serve(['calm']), await talk()]
  await (await other.talk()).ask('hello')
  for (const word of ['hello', 'again', 'still here']) await known.ask(word)
  const before = filesOfWorkers()
  const flood = await Promise.all(Array.from({ length: 3 * maxFlows }, () => talk()))
  const clients = () => new Set(programs[0]!.heard.map(({ from }) => from)).size
  await until(() => {
    for (const client of flood) client.say('flood')
    return clients() > maxFlows
  })
  expect(filesOfWorkers() - before).toBeLessThan(maxFlows)
  expect((await known.ask('after it')).text).toBe('flooded after it')
  const from = programs[0]!.heard.filter(({ text }) => /hello|again|still here|after it/.test(text))
  expect(new Set(from.map((each) => each.from)).size).toBe(1)
  expect((await (await other.talk()).ask('hello')).text).toBe('calm hello')
})

test('clients are served by the new workers after workers are replaced or killed', async () => {
  const { talk } = await serve(['lasting'])
  const client = await talk()
  await client.ask('hello')
  const listening = () => edge.log.split('listening').length
  const before = listening()
  edge.process.kill('SIGHUP')
  await until(() => listening() > before)
  expect((await client.ask('after a change')).text).toBe('lasting after a change')
  for (const pid of workers()) process.kill(pid, 'SIGKILL')
  expect((await client.ask('after a death')).text).toBe('lasting after a death')
})

test('a shared address receives no datagrams', async () => {
  const [shared, port] = ['127.0.0.9', await freePort()]
  const app = await edge.app(shared, true)
  const program = await echo('nobody')
  const internal = await edge.backend((_request, reply) => reply.end('known'))
  await edge.machine(app, [service(program.port, port), web(internal)])
  await edge.untilAnswered('known', `${app}.app.test`)
  const client = await talker(shared, port)
  client.say('hello')
  await until(() => client.errors.includes('ECONNREFUSED'))
  expect(program.heard).toEqual([])
})

test('autostop does not stop a machine that has UDP clients', async () => {
  const [busy, idle] = [await serve(['busy']), await serve(['idle'])]
  await (await busy.talk()).ask('hello')
  await edge.database.db.query(
    `update machine set config = jsonb_set(config, '{services,0,autostop}', '"stop"') where id = any($1)`,
    [[...busy.machines, ...idle.machines]],
  )
  await until(async () => (await stateOf(idle.machines[0]!)) === 'stopping')
  expect(await stateOf(busy.machines[0]!)).toBe('started')
})

function workers(): number[] {
  const { pid } = edge.process
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')
  return [...children.matchAll(/\d+/g)].map(Number)
}

function filesOfWorkers(): number {
  return workers().reduce((sum, pid) => sum + readdirSync(`/proc/${pid}/fd`).length, 0)
}
