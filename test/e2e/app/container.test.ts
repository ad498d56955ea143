// A machine with several containers, from images in a registry to its removal.
import { globSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy, isRunning, processesOf } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let registry: Registry
let [server, tool] = ['', '']
const path = '/v1/apps/shop/machines'
const forever = 'while :; do sleep 0.05; done'

beforeAll(async () => {
  registry = await startRegistry()
  const serve = 'httpd -p 127.0.0.1:7000 -h /www; echo serving; trap "exit 0" TERM INT; while :; do sleep 0.05; done'
  const push = async (repository: string, Cmd: string[]) =>
    (await pushImage(registry, { repository, ...busyboxImage({ Cmd }) })).reference
  server = await push('server', ['sh', '-c', serve])
  tool = await push('tool', ['true'])
  await berth.up()
  await berth.call('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

const ok = (method: string, rest: string, body?: object) => berth.ok(method, `${path}${rest}`, body)
const wait = (id: string, state: string) => ok('GET', `/${id}/wait?state=${state}&timeout=60`)
const exec = async (id: string, container: string, text: string) =>
  (await ok('POST', `/${id}/exec`, { command: ['sh', '-c', text], container })).stdout.trim()

async function containersOf(
  id: string,
): Promise<Record<string, { state: string; restart_count: number; health?: string }>> {
  const { containers } = await ok('GET', `/${id}`)
  return Object.fromEntries(containers.map((found: { name: string }) => [found.name, found]))
}

const untilStates = (id: string, states: Record<string, string>) =>
  until(async () => {
    const found = await containersOf(id)
    return Object.entries(states).every(([name, state]) => found[name]?.state === state)
  })

async function logOf(id: string): Promise<string[]> {
  const headers = { authorization: `Bearer ${berth.token}` }
  const text = await (await fetch(`${berth.addresses.api}${path}/${id}/logs?lines=1000`, { headers })).text()
  const lines = text.trim().split('\n').filter(Boolean)
  return lines.map((line) => JSON.parse(line)).map(({ container, message }) => `${container}: ${message}`)
}

/** The pid on the host of the program whose command line contains this text. Its children have it too until they run `sleep`. */
function pidOf(id: string, text: string): number | undefined {
  const found = globSync('/proc/[0-9]*').flatMap((directory) => {
    const read = (file: string) => readFileSync(`${directory}/${file}`, 'utf8')
    try {
      const line = read('cmdline')
      if (!line.startsWith('sh\0') || !line.includes(text)) return []
      if (!read('environ').includes(`FLY_MACHINE_ID=${id}\0`)) return []
      return [{ pid: Number(directory.slice(6)), parent: Number(/^PPid:\t(\d+)/m.exec(read('status'))?.[1]) }]
    } catch {
      return [] // the process has ended
    }
  })
  return found.find(({ parent }) => found.every(({ pid }) => pid !== parent))?.pid
}

const containers = () => [
  {
    name: 'client',
    image: tool,
    cmd: ['sh', '-c', `echo client; wget -q -O - http://127.0.0.1:7000/ready; ${forever}`],
    env: { WHO: 'client' },
    depends_on: [{ name: 'server', condition: 'healthy' }],
    restart: { policy: 'always' },
  },
  {
    name: 'server',
    image: server,
    files: [{ guest_path: '/www/ready', raw_value: Buffer.from('yes\n').toString('base64') }],
    depends_on: [{ name: 'setup', condition: 'exited_successfully' }],
    healthchecks: [
      { name: 'http', http: { port: 7000, path: '/ready' }, interval: 1 },
      { name: 'file', exec: { command: ['test', '-f', '/www/ready'] }, interval: 1 },
    ],
  },
  { name: 'setup', image: tool, cmd: ['sh', '-c', 'sleep 0.2; echo set up'] },
]

test('containers start in order, reach each other, outlive the control plane and end together', async () => {
  const { id } = await ok('POST', '', { config: { containers: containers() } })
  await wait(id, 'started')
  await untilStates(id, { setup: 'stopped', server: 'running', client: 'running' })
  expect((await containersOf(id)).server!.health).toBe('healthy')
  await until(async () => (await logOf(id)).includes('client: yes'))
  const said = (await logOf(id)).filter((line) => /: (set up|serving|client)$/.test(line))
  expect(said).toEqual(['setup: set up', 'server: serving', 'client: client'])
  expect(await exec(id, 'client', 'echo $WHO; ls /www')).toBe('client')
  expect(await exec(id, 'server', 'cat /www/ready; echo $WHO')).toBe('yes')

  const [before, steady] = [pidOf(id, 'echo client')!, pidOf(id, 'echo serving')!]
  await end(berth.children.at(-1)!)
  expect(isRunning(before)).toBe(true)
  process.kill(before, 'SIGKILL')
  await until(() => ![undefined, before].includes(pidOf(id, 'echo client')))
  await berth.up()
  await until(async () => (await containersOf(id)).client!.restart_count === 1)
  expect(pidOf(id, 'echo serving')).toBe(steady)
  const { events, state } = await ok('GET', `/${id}`)
  expect(state).toBe('started')
  const exits = events.flatMap(
    ({ type, request }: { type: string; request: { exit_event: { container: string; exit_code: number } } }) =>
      type === 'exit' ? [`${request.exit_event.container} ${request.exit_event.exit_code}`] : [],
  )
  expect(exits).toEqual(['client 137', 'setup 0'])

  await ok('POST', `/${id}`, { config: { containers: [{ name: 'only', image: tool, cmd: ['sh', '-c', forever] }] } })
  await until(async () => (await containersOf(id)).only?.state === 'running')
  expect(isRunning(steady)).toBe(false)
  await ok('POST', `/${id}/stop`, { signal: 'SIGKILL' })
  await wait(id, 'stopped')
  expect(await containersOf(id)).toMatchObject({ only: { state: 'stopped' } })
  await ok('DELETE', `/${id}?force=true`)
  await wait(id, 'destroyed')
  await until(() => processesOf(id).length === 0)
}, 240_000)
