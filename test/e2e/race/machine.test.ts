// Every pair of operations of a machine at nearly the same moment: afterwards its program, environment, interfaces and
// route are those that the API describes, and each exit of a program follows a start.
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { MachineReality } from '../../support/race/machine.ts'
import type { Answer, Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

interface Shown {
  id: string
  instance_id: string
  state: string
  failure?: string
  cordoned: boolean
  config: { env: Record<string, string>; init: { cmd: string[] } }
  events: { id: string; type: string; status: string }[]
}

const platform = new CrashingBerth(new Berth())
const reality = new MachineReality(platform.berth)
const machines = '/v1/apps/shop/machines'
let registry: Registry
let image: string
let id = ''
/** Of the lease that the last round has taken. */
let nonce = ''

beforeAll(async () => {
  registry = await startRegistry()
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage() })).reference
  await platform.up()
  await send('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
  await send('POST', '/v1/apps/shop/ip_assignments', { type: 'v4' })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(platform.berth)
})

const send = (method: string, path: string, body?: object) => platform.send('api', method, path, body)
const act = (verb: string, body?: object) => send('POST', `${machines}/${id}/${verb}`, body)

/** Each version has its own mark in its arguments, its environment and what it serves. It takes a moment to stop. */
const script = `httpd -p 8080 -h /www; trap 'sleep 0.1; exit 0' INT TERM; while :; do sleep 0.02; done`
const config = (mark: string) => ({
  image,
  env: { RACE: mark },
  init: { cmd: ['sh', '-c', script, `race-${mark}`] },
  files: [{ guest_path: '/www/index.html', raw_value: Buffer.from(mark).toString('base64') }],
  services: [{ protocol: 'tcp', internal_port: 8080, autostart: false, ports: [{ port: 80, handlers: ['http'] }] }],
})

async function takeLease(): Promise<Answer> {
  const answer = await act('lease', { ttl: 2 })
  if (answer.status === 201) nonce = JSON.parse(answer.text).data.nonce
  return answer
}

const operations: Operation[] = [
  { name: 'create', run: () => send('POST', machines, { name: 'web', config: config('made') }) },
  { name: 'start', run: () => act('start') },
  { name: 'stop', run: () => act('stop', {}) },
  { name: 'stop at once', run: () => act('stop', { signal: 'SIGKILL', timeout: '1s' }) },
  { name: 'restart', run: () => act('restart') },
  { name: 'suspend', run: () => act('suspend') },
  { name: 'update', run: () => send('POST', `${machines}/${id}`, { config: config('two') }) },
  {
    name: 'update and leave',
    run: () => send('POST', `${machines}/${id}`, { config: config('3'), skip_launch: true }),
  },
  { name: 'delete', run: () => send('DELETE', `${machines}/${id}?force=true`) },
  { name: 'delete a stopped one', run: () => send('DELETE', `${machines}/${id}`) },
  { name: 'kill the program', run: () => act('signal', { signal: 'SIGKILL' }) },
  { name: 'lease', run: takeLease },
  { name: 'set metadata', run: () => act('metadata/race', { value: 'yes' }) },
  { name: 'cordon', run: () => act('cordon') },
  { name: 'uncordon', run: () => act('uncordon') },
  { name: 'run a command', run: () => act('exec', { command: ['true'] }) },
  { name: 'list processes', run: () => send('GET', `${machines}/${id}/ps`) },
]

const isSettled = ({ state }: Shown) => ['created', 'started', 'stopped', 'suspended', 'failed'].includes(state)

async function show(): Promise<Shown[]> {
  const { status, text } = await send('GET', machines)
  if (status !== 200) throw new Error(`list the machines: ${status} ${text}`)
  return JSON.parse(text)
}

/** Rounds begin with a machine that runs, one that is stopped and one that is suspended in turn. */
const beginnings = ['started', 'stopped', 'suspended']
let rounds = 0

async function prepare(): Promise<void> {
  const beginning = beginnings[rounds++ % beginnings.length]!
  if (nonce !== '')
    await platform.send('api', 'DELETE', `${machines}/${id}/lease`, undefined, { 'fly-machine-lease-nonce': nonce })
  nonce = ''
  await until(async () => (await send('GET', `${machines}/${id}/lease`)).status === 404)
  await until(async () => (await show()).every(isSettled))
  await until(async () => {
    const [found] = await show()
    id = found?.id ?? JSON.parse((await send('POST', machines, { name: 'web', config: config('one') })).text).id
    if (found?.state === beginning) return true
    if (found?.state === 'started') await act(beginning === 'stopped' ? 'stop' : 'suspend', {})
    else if (found && isSettled(found)) await act('start')
    return false
  })
  await act('uncordon')
}

async function findDifference(): Promise<string | undefined> {
  const shown = await show()
  const strangers = reality.traces().strangers(shown.map((machine) => machine.id))
  if (strangers.length > 0) return `left of machines that do not exist: ${JSON.stringify(strangers)}`
  for (const machine of shown) {
    const difference = isSettled(machine) ? differenceOf(machine) : `it is ${machine.state}`
    if (difference !== undefined) return difference
  }
  const running = shown.filter(({ state }) => state === 'started' || state === 'suspended')
  const [links, wanted] = [reality.links(), running.flatMap((machine) => reality.linksOf(machine.id))]
  if (String(links.sort()) !== String(wanted.sort())) return `there are the interfaces ${links}, and not ${wanted}`
  return findRouteProblem(shown[0])
}

function differenceOf(machine: Shown): string | undefined {
  const { state, config, instance_id: version, failure } = machine
  const processes = reality.processes(machine.id)
  if (state === 'failed') return `it has failed: ${failure}`
  if (state === 'created' || state === 'stopped')
    return processes.length === 0 ? findEventProblem(machine) : `it is ${state}, and ${JSON.stringify(processes)} run`
  const programs = reality.programs(machine.id)
  if (programs.length !== 1) return `it is ${state}, and ${programs.length} programs run`
  const [{ args, environment }] = programs as [(typeof programs)[0]]
  if (String(args) !== String(config.init.cmd)) return `it is ${config.init.cmd}, and ${args} runs`
  for (const entry of [`RACE=${config.env.RACE}`, `FLY_MACHINE_VERSION=${version}`, `FLY_MACHINE_ID=${machine.id}`])
    if (!environment.includes(entry)) return `it runs without ${entry}: ${environment}`
  if (reality.isFrozen(machine.id) !== (state === 'suspended')) return `it is ${state}, and frozen or not frozen`
  return findEventProblem(machine)
}

/** A program that exits has been started after its previous exit. */
function findEventProblem({ events }: Shown): string | undefined {
  let hasExited = false
  for (const { type, status } of [...events].reverse()) {
    if (type === 'exit' && hasExited)
      return `two exits follow each other: ${JSON.stringify(events.map((event) => `${event.type} ${event.status}`))}`
    if (type === 'exit') hasExited = true
    else if (['starting', 'started', 'replacing'].includes(status)) hasExited = false
  }
  return undefined
}

async function findRouteProblem(machine: Shown | undefined): Promise<string | undefined> {
  const served = await reality.ask('shop.berth.localhost')
  const wanted = machine?.state === 'started' && !machine.cordoned ? machine.config.env.RACE : undefined
  return served === wanted ? undefined : `its address serves ${served}, and not ${wanted}`
}

raceTest(
  'a machine is as the API describes it after any two operations',
  () => ({ operations, prepare, findDifference, crash: () => platform.crash() }),
  {
    budgetMs: 20_000,
  },
)
