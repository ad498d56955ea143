// Every pair of operations of services at nearly the same moment: afterwards the processes are those that the API describes.
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { BoxReality } from '../../support/race/box.ts'
import type { Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'

interface Shown {
  name: string
  args: string[]
  env?: Record<string, string>
  needs: string[]
  state: { status: string; pid?: number; error?: string; restart_count?: number }
}

const platform = new CrashingBerth(new Berth())
const reality = new BoxReality(platform.berth)
const box = '/v1/sandboxes/box'
let id = ''

beforeAll(async () => {
  await platform.up()
  id = JSON.parse((await send('POST', '/v1/sandboxes', { name: 'box' })).text).id
})

afterAll(() => destroy(platform.berth))

const send = (method: string, path: string, body?: object) => platform.send('sandbox', method, path, body)

/** Each definition has its own mark in its arguments and in its environment. It takes a moment to stop. */
const program = (mark: string, needs: string[] = []) => ({
  cmd: 'sh',
  args: ['-c', `trap 'sleep 0.1; exit 0' TERM; while :; do sleep 0.02; done`, `race-${mark}`],
  env: { RACE: mark },
  needs,
})

const put = (name: string, body: object) => send('PUT', `${box}/services/${name}?duration=1ms`, body)
const act = (name: string, verb: string) => send('POST', `${box}/services/${name}/${verb}?duration=1ms`)

const operations: Operation[] = [
  { name: 'put the same', run: () => put('web', program('web-one')) },
  { name: 'put another', run: () => put('web', program('web-two')) },
  { name: 'put a third', run: () => put('web', program('web-three')) },
  { name: 'put with needs', run: () => put('web', program('web-four', ['db'])) },
  { name: 'put the needed one', run: () => put('db', program('db-two')) },
  { name: 'put the needed one with needs', run: () => put('db', program('db-three', ['web'])) },
  { name: 'start', run: () => act('web', 'start') },
  { name: 'stop', run: () => act('web', 'stop') },
  { name: 'restart', run: () => act('web', 'restart') },
  { name: 'delete', run: () => send('DELETE', `${box}/services/web`) },
  { name: 'stop the needed one', run: () => act('db', 'stop') },
  { name: 'restart the needed one', run: () => act('db', 'restart') },
  { name: 'delete the needed one', run: () => send('DELETE', `${box}/services/db`) },
  { name: 'signal', run: () => send('POST', `${box}/services/signal`, { name: 'web', signal: 'KILL' }) },
  { name: 'restart the sandbox', run: () => send('POST', `${box}/restart`) },
]

async function prepare(): Promise<void> {
  for (const name of ['web', 'db']) await send('DELETE', `${box}/services/${name}`)
  for (const name of ['web', 'db']) await send('DELETE', `${box}/services/${name}`)
  await put('db', program('db-one'))
  await put('web', program('web-one'))
}

async function findDifference(): Promise<string | undefined> {
  const shown: Shown[] = JSON.parse((await send('GET', `${box}/services`)).text)
  const names = shown.map(({ name }) => name).sort()
  const supervised = reality.services(id).sort()
  if (String(names) !== String(supervised)) return `there are the services ${supervised}, and the API shows ${names}`
  const processes = reality.processes(id).filter(({ args }) => args[3]?.startsWith('race-'))
  const strangers = processes.filter(({ pid }) => !shown.some(({ state }) => state.pid === pid))
  if (strangers.length > 0) return `the API does not show ${JSON.stringify(strangers)}: ${JSON.stringify(shown)}`
  return shown.map((service) => differenceOf(service, processes)).find((difference) => difference !== undefined)
}

function differenceOf({ name, args, env, state }: Shown, processes: ReturnType<BoxReality['processes']>) {
  if (state.status === 'stopped') return state.pid === undefined ? undefined : `${name} is stopped and has a pid`
  const found = processes.find(({ pid }) => pid === state.pid)
  if (state.status !== 'running' || !found) return `${name} does not run: ${JSON.stringify(state)}`
  if (String(found.args.slice(1)) !== String(args)) return `${name} is ${args}, and ${found.args} runs`
  if (!found.environment.includes(`RACE=${env?.RACE}`)) return `${name} runs with ${found.environment}`
  return undefined
}

raceTest('services are as the API describes them after any two operations', () => ({
  operations,
  prepare,
  findDifference,
  crash: () => platform.crash(),
}))
