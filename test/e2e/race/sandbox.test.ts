// Every pair of operations of a sandbox at nearly the same moment: afterwards the host is as the API describes it, and
// nothing is left of sandboxes that do not exist.
import { request } from 'node:http'
import { isDeepStrictEqual } from 'node:util'
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { BoxReality } from '../../support/race/box.ts'
import type { Answer, Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'

const platform = new CrashingBerth(new Berth())
const reality = new BoxReality(platform.berth)
const box = '/v1/sandboxes/box'

beforeAll(() => platform.up())

afterAll(() => destroy(platform.berth))

const send = (method: string, path: string, body?: object | string) => platform.send('sandbox', method, path, body)

const rules = [{ domain: 'example.com', action: 'allow' }]
const file = `${box}/fs/write?path=/home/sprite/file&workingDir=/`

/** While it ends, the box is neither up nor down. */
const slow = { cmd: 'sh', args: ['-c', `trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.02; done`] }

const operations: Operation[] = [
  { name: 'create', run: () => send('POST', '/v1/sandboxes', { name: 'box' }) },
  { name: 'get', run: () => send('GET', box) },
  { name: 'delete', run: () => send('DELETE', box) },
  { name: 'restart', run: () => send('POST', `${box}/restart`) },
  { name: 'upgrade', run: () => send('POST', `${box}/upgrade`, {}) },
  { name: 'make a checkpoint', run: () => send('POST', `${box}/checkpoint`, {}) },
  { name: 'restore a checkpoint', run: () => send('POST', `${box}/checkpoints/v1/restore`) },
  { name: 'set a network policy', run: () => policyThatHolds(rules) },
  { name: 'clear the network policy', run: () => policyThatHolds([]) },
  { name: 'run a command', run: () => send('POST', `${box}/exec?cmd=true`) },
  { name: 'write a file', run: () => send('PUT', file, 'text') },
  { name: 'delete a file', run: () => send('DELETE', `${box}/fs/delete?path=/home/sprite/file&workingDir=/`) },
  { name: 'make it public', run: () => send('PUT', box, { url_settings: { auth: 'public' } }) },
  { name: 'change its environment', run: () => send('PUT', box, { environment: { RACE: 'yes' } }) },
]

/** The policy is in force when the request is answered, unless another request has changed it since. */
async function policyThatHolds(wanted: object[]): Promise<Answer> {
  const answer = await send('POST', `${box}/policy/network`, { rules: wanted })
  if (answer.status !== 204) return answer
  const { id, policy } = await describe()
  if (id === undefined || policy?.length !== wanted.length) return answer
  const isInForce = reality.hasKernelPolicy(id)
  const still = await describe()
  if (still.id !== id || still.policy?.length !== wanted.length || isInForce === wanted.length > 0) return answer
  return { status: 500, text: `the policy ${JSON.stringify(wanted)} was answered with 204 and is not in force` }
}

/** Cutting off a command or an upload that runs is what these are for. */
const ends = ['restart', 'upgrade', 'restore a checkpoint']
const isCutOff = ['run a command', 'write a file', 'delete a file']

async function describe(): Promise<{ id?: string; status?: string; auth?: string; policy?: object[] }> {
  const shown = await send('GET', box)
  if (shown.status !== 200) return {}
  const { id, status, url_settings } = JSON.parse(shown.text)
  const policy = await send('GET', `${box}/policy/network`)
  return {
    id,
    status,
    auth: url_settings.auth,
    ...(policy.status === 200 && { policy: JSON.parse(policy.text).rules }),
  }
}

async function prepare(): Promise<void> {
  if ((await send('GET', box)).status === 404) await send('POST', '/v1/sandboxes', { name: 'box' })
  await send('PUT', box, { url_settings: { auth: 'sprite' }, environment: {} })
  await send('POST', `${box}/policy/network`, { rules: [] })
  await send('PUT', file, 'before')
  await send('PUT', `${box}/services/slow?duration=1ms`, slow)
  const checkpoints: { id: string }[] = JSON.parse((await send('GET', `${box}/checkpoints`)).text)
  if (!checkpoints.some(({ id }) => id === 'v1')) await send('POST', `${box}/checkpoint`, {})
}

async function findDifference(): Promise<string | undefined> {
  const shown = await describe()
  const strangers = reality.traces().strangers(shown.id === undefined ? [] : [shown.id])
  if (strangers.length > 0) return `left of sandboxes that do not exist: ${JSON.stringify(strangers)}`
  if (shown.id === undefined) return undefined
  const problem = findBoxProblem(shown.id, shown.status!)
  if (problem !== undefined || shown.status !== 'running') return problem
  if (reality.hasKernelPolicy(shown.id) !== shown.policy!.length > 0)
    return `the policy is ${JSON.stringify(shown.policy)}, and the kernel has another`
  const seen = reality.shownPolicy(shown.id)?.rules
  if (!isDeepStrictEqual(seen, shown.policy)) return `the box sees the policy ${JSON.stringify(seen)}`
  return (await findCheckpointProblem(shown.id)) ?? findRouteProblem(shown.auth!)
}

function findBoxProblem(id: string, status: string): string | undefined {
  const first = reality.processes(id).filter(({ pid, args }) => pid === 1 && args[0]?.endsWith('s6-svscan'))
  const wanted = status === 'running' ? 1 : 0
  return first.length === wanted ? undefined : `it is ${status} and has ${first.length} first processes`
}

async function findCheckpointProblem(id: string): Promise<string | undefined> {
  const shown: { id: string }[] = JSON.parse((await send('GET', `${box}/checkpoints`)).text)
  const names = shown.map((one) => one.id).filter((name) => /^v\d+$/.test(name))
  const there = reality.checkpoints(id)
  if (String(names.sort()) === String(there.sort())) return undefined
  return `it has the checkpoints ${there}, and the API shows ${names}`
}

/** Nothing listens in the box, so who may pass the edge is told so, and others are not. */
async function findRouteProblem(auth: string): Promise<string | undefined> {
  const status = await new Promise<number>((resolve, reject) => {
    const headers = {
      host: new URL(`${platform.berth.addresses.edge}`).host.replace(/^[^:]*/, 'box.sandbox.localhost'),
    }
    const sent = request(platform.berth.addresses.edge, { headers }, (reply) => {
      reply.resume()
      resolve(reply.statusCode!)
    })
    sent.once('error', reject).end()
  })
  return (status === 401) === (auth === 'sprite') ? undefined : `its URL is for ${auth} and answers ${status}`
}

raceTest('a sandbox is as the API describes it after any two operations', () => ({
  operations,
  prepare,
  findDifference,
  crash: () => platform.crash(),
  mayFail: (name, beside, { status }) => status === 503 && isCutOff.includes(name) && ends.includes(beside),
}))
