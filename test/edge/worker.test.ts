import { once } from 'node:events'
import { type IncomingMessage, request, type ServerResponse } from 'node:http'
import { expect, onTestFinished, test } from 'vitest'
import { startEcho, startTalker } from '../support/datagram.ts'
import { useEdgeProcess, web } from '../support/edge-process.ts'
import { freePort } from '../support/port.ts'
import { until } from '../support/until.ts'

// A worker that gets SIGUSR2 has an error that nothing handles.
const fault = `process.on('SIGUSR2', () => { throw new Error('a fault in a worker') })`
const edge = useEdgeProcess({ nodeOptions: ['--import', `data:text/javascript,${encodeURIComponent(fault)}`] })

/** Requests whose responses have begun; more of them than workers, so that each worker has one. */
async function beginResponses(host: string, held: ServerResponse[]): Promise<Promise<string>[]> {
  const bodies: Promise<string>[] = []
  for (let n = 0; n < 8; n++) {
    const call = request({ host: '127.0.0.1', port: edge.port, agent: false, path: '/held', headers: { host } }).end()
    const [reply] = (await once(call, 'response')) as [IncomingMessage]
    bodies.push(
      (async () => {
        let body = ''
        for await (const chunk of reply) body += chunk
        return body
      })(),
    )
  }
  await until(() => held.length === 8)
  return bodies
}

async function makeApp(held: ServerResponse[]): Promise<string> {
  const name = await edge.app('127.0.0.9', true)
  const internal = await edge.backend((asked, reply) => {
    if (asked.url !== '/held') {
      reply.end('quick')
      return
    }
    reply.write('first ')
    held.push(reply)
  })
  await edge.machine(name, [web(internal)])
  await edge.untilAnswered('quick', `${name}.app.test`)
  return `${name}.app.test`
}

test('a worker with an unhandled error is replaced, and its requests finish', async () => {
  const held: ServerResponse[] = []
  const host = await makeApp(held)
  const bodies = await beginResponses(host, held)
  const before = edge.listWorkers()
  expect(before.length).toBe(2)
  for (const pid of before) process.kill(pid, 'SIGUSR2')
  await until(() => edge.listWorkers().filter((pid) => !before.includes(pid)).length === 2)
  expect((await edge.ask(host)).body).toBe('quick')
  for (const reply of held) reply.end('last')
  expect(await Promise.all(bodies)).toEqual(bodies.map(() => 'first last'))
  await until(() => !edge.listWorkers().some((pid) => before.includes(pid)))
  expect(edge.log).toContain('a fault in a worker')
})

test('requests finish and datagrams are forwarded after the edge process was killed', async () => {
  const held: ServerResponse[] = []
  const host = await makeApp(held)
  const bodies = await beginResponses(host, held)
  const workers = edge.listWorkers()
  const echo = await startEcho('udp')
  const port = await freePort()
  const address = `127.80.${process.pid % 250}.1`
  await edge.machine(await edge.app(address), [{ protocol: 'udp', internal_port: echo.port, ports: [{ port }] }])
  const talker = await startTalker(address, port)
  onTestFinished(() => {
    echo.close()
    talker.close()
  })
  await talker.ask('before')
  edge.process.kill('SIGKILL')
  await once(edge.process, 'exit')
  await talker.ask('after')
  for (const reply of held) reply.end('last')
  expect(await Promise.all(bodies)).toEqual(bodies.map(() => 'first last'))
  await until(() => workers.every((pid) => !isRunning(pid)))
})

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}
