import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { type IncomingMessage, request, type ServerResponse } from 'node:http'
import { expect, test } from 'vitest'
import { useEdgeProcess, web } from '../support/edge-process.ts'
import { until } from '../support/until.ts'

// A worker that gets SIGUSR2 has an error that nothing handles.
const fault = `process.on('SIGUSR2', () => { throw new Error('a fault in a worker') })`
const edge = useEdgeProcess({}, ['--import', `data:text/javascript,${encodeURIComponent(fault)}`])

function listWorkers(): number[] {
  const text = execFileSync('ps', ['-o', 'pid=', '--ppid', String(edge.process.pid)], { encoding: 'utf8' })
  return text.split('\n').flatMap((line) => (line.trim() === '' ? [] : [Number(line)]))
}

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
  const before = listWorkers()
  expect(before.length).toBe(2)
  for (const pid of before) process.kill(pid, 'SIGUSR2')
  await until(() => listWorkers().filter((pid) => !before.includes(pid)).length === 2)
  expect((await edge.ask(host)).body).toBe('quick')
  for (const reply of held) reply.end('last')
  expect(await Promise.all(bodies)).toEqual(bodies.map(() => 'first last'))
  await until(() => !listWorkers().some((pid) => before.includes(pid)))
  expect(edge.log).toContain('a fault in a worker')
})

test('requests finish after the edge process was killed', async () => {
  const held: ServerResponse[] = []
  const host = await makeApp(held)
  const bodies = await beginResponses(host, held)
  const workers = listWorkers()
  edge.process.kill('SIGKILL')
  await once(edge.process, 'exit')
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
