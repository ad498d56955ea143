import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net'
import { expect, test } from 'vitest'
import { useEdgeProcess, web } from '../support/edge-process.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

const edge = useEdgeProcess()
// A loopback address that no other test uses.
const address = `127.77.${process.pid % 250}.1`

test('the edge listens on addresses of apps as they are added and removed', async () => {
  const name = await edge.app(address)
  const [internal, raw, own] = [
    await edge.backend((_, reply) => reply.end('mine')),
    createTcpServer(),
    await freePort(),
  ]
  raw.on('connection', (socket) => socket.end('bytes'))
  await new Promise<void>((resolve) => raw.listen(0, '127.0.0.1', resolve))
  await edge.machine(name, [
    web(internal, {
      ports: [
        { port: 80, handlers: ['http'] },
        { port: own + 1, handlers: ['http'] },
      ],
    }),
    { internal_port: (raw.address() as AddressInfo).port, ports: [{ port: own }] },
  ])
  await edge.untilAnswered('mine', 'whatever.test', address)
  await edge.untilAnswered('mine', 'whatever.test', address, own + 1)
  expect((await edge.ask(`${name}.app.test`)).body).toBe('mine')
  const socket = connect(own, address)
  let text = ''
  for await (const chunk of socket) text += chunk
  expect(text).toBe('bytes')
  raw.close()
  await edge.database.db.query('delete from ip where app_id = $1', [name])
  await until(async () => (await edge.asked('whatever.test', address)).status === 0)
  expect((await edge.ask(`${name}.app.test`)).status).toBe(404)
})

test('an idle machine is stopped, and a request starts it again', async () => {
  const name = await edge.app('127.0.0.9', true)
  const internal = await edge.backend((_, reply) => reply.end('awake'))
  const service = web(internal, { autostop: 'stop', autostart: true })
  const [idle, kept] = [await edge.machine(name, [service]), await edge.app('127.0.0.9', true)]
  await edge.machine(kept, [{ ...service, min_machines_running: 1 }])
  const stateOf = async () =>
    (await edge.database.db.query('select state from machine where id = $1', [idle])).rows[0].state
  await until(async () => (await edge.asked(`${name}.app.test`)).body === 'awake')
  await until(async () => (await stateOf()) === 'stopping')
  const { rows } = await edge.database.db.query('select source, status from machine_event where machine_id = $1', [
    idle,
  ])
  expect(rows).toEqual([{ source: 'proxy', status: 'stopping' }])
  await edge.database.db.query(`update machine set state = 'stopped' where id = $1`, [idle])
  const replies: Promise<{ body: string }>[] = []
  // Until the edge learns of the stop, it still forwards to the program, which runs on in this test.
  await until(async () => {
    replies.push(edge.ask(`${name}.app.test`))
    return (await stateOf()) === 'starting'
  })
  await edge.database.db.query(`update machine set state = 'started' where id = $1`, [idle])
  for (const { body } of await Promise.all(replies)) expect(body).toBe('awake')
  const others = await edge.database.db.query('select state from machine where app_id = $1', [kept])
  expect(others.rows).toEqual([{ state: 'started' }])
})

test('no request fails while the workers are replaced', async () => {
  const name = await edge.app('127.0.0.9', true)
  await edge.machine(name, [web(await edge.backend((_, reply) => reply.end('here')))])
  await edge.untilAnswered('here', `${name}.app.test`)
  let isOver = false
  const answers: string[] = []
  const asking = Array.from({ length: 4 }, async () => {
    while (!isOver) answers.push((await edge.ask(`${name}.app.test`)).body)
  })
  const listening = () => edge.log.split('listening').length
  for (let round = 0; round < 2; round++) {
    const before = listening()
    edge.process.kill('SIGHUP')
    await until(() => listening() > before)
    const count = answers.length
    await until(() => answers.length > count + 50)
  }
  isOver = true
  await Promise.all(asking)
  expect(answers.filter((body) => body !== 'here')).toEqual([])
})

test('a small hard limit applies to all workers together', async () => {
  const name = await edge.app('127.0.0.9', true)
  let [now, most, all] = [0, 0, 0]
  const internal = await edge.backend((_request, reply) => {
    now += 1
    all += 1
    most = Math.max(most, now)
    setTimeout(() => {
      now -= 1
      reply.end('one at a time')
    }, 5)
  })
  await edge.machine(name, [web(internal, { concurrency: { type: 'requests', soft_limit: 1, hard_limit: 1 } })])
  await edge.untilAnswered('one at a time', `${name}.app.test`)
  const replies = await Promise.all(Array.from({ length: 60 }, () => edge.ask(`${name}.app.test`)))
  expect(replies.filter(({ status }) => status !== 200)).toEqual([])
  expect([most, all >= 61]).toEqual([1, true])
})
