// Every pair of operations of an app at nearly the same moment, with its deletion among them: afterwards its machines,
// volumes, addresses and host names are those that the API describes, and nothing is left of deleted apps.
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy, stateDatabase } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { MachineReality } from '../../support/race/machine.ts'
import type { Answer, Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

interface Machine {
  id: string
  state: string
  failure?: string
}

const platform = new CrashingBerth(new Berth())
const reality = new MachineReality(platform.berth)
const state = stateDatabase(platform.berth)
const app = '/v1/apps/shop'
const host = 'race.example.com'
let registry: Registry
let image: string
/** The addresses that the app has had. */
const addresses = new Set<string>()

beforeAll(async () => {
  registry = await startRegistry()
  const script = 'httpd -p 8080 -h /www; trap "exit 0" INT TERM; while :; do sleep 0.02; done'
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  await platform.up()
  await state.connect()
}, 120_000)

afterAll(async () => {
  await state.end()
  await registry?.close()
  await destroy(platform.berth)
})

const send = (method: string, path: string, body?: object) => platform.send('api', method, path, body)

const config = () => ({
  image,
  files: [{ guest_path: '/www/index.html', raw_value: Buffer.from('served').toString('base64') }],
  services: [{ protocol: 'tcp', internal_port: 8080, autostart: false, ports: [{ port: 80, handlers: ['http'] }] }],
})

async function allocate(type: string): Promise<Answer> {
  const answer = await send('POST', `${app}/ip_assignments`, { type })
  if (answer.status === 200) addresses.add(JSON.parse(answer.text).ip)
  return answer
}

const createMachine = () => send('POST', `${app}/machines`, { name: 'web', config: config() })
const first = () => [...addresses][0]

const operations: Operation[] = [
  { name: 'create', run: () => send('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' }) },
  { name: 'delete', run: () => send('DELETE', `${app}?force=true`) },
  { name: 'delete without force', run: () => send('DELETE', app) },
  { name: 'create a machine', run: createMachine },
  { name: 'create a volume', run: () => send('POST', `${app}/volumes`, { name: 'data', size_gb: 1 }) },
  { name: 'allocate an address', run: () => allocate('v4') },
  { name: 'allocate the shared address', run: () => allocate('shared_v4') },
  { name: 'allocate a private address', run: () => send('POST', `${app}/ip_assignments`, { type: 'private_v6' }) },
  { name: 'release an address', run: () => send('DELETE', `${app}/ip_assignments/${first()}`) },
  { name: 'set secrets', run: () => send('POST', `${app}/secrets`, { values: { ONE: '1', TWO: '2' } }) },
  { name: 'delete a secret', run: () => send('DELETE', `${app}/secrets/ONE`) },
  { name: 'generate a key', run: () => send('POST', `${app}/secretkeys/key/generate`, { type: 'hs256' }) },
  { name: 'request a certificate', run: () => send('POST', `${app}/certificates/acme`, { hostname: host }) },
  { name: 'remove a certificate', run: () => send('DELETE', `${app}/certificates/${host}/acme`) },
  { name: 'remove the host name', run: () => send('DELETE', `${app}/certificates/${host}`) },
  { name: 'set a network policy', run: setPolicy },
  { name: 'create a token', run: () => send('POST', `${app}/deploy_token`, {}) },
]

function setPolicy(): Promise<Answer> {
  const rules = [{ action: 'allow', direction: 'egress', ports: [{ protocol: 'tcp', port: 80 }] }]
  return send('POST', `${app}/network_policies`, { name: 'race', selector: { all: true }, rules })
}

async function prepare(): Promise<void> {
  await send('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
  for (const ip of await listIps()) if (addresses.size > 4) await send('DELETE', `${app}/ip_assignments/${ip}`)
  addresses.clear()
  for (const ip of await listIps()) addresses.add(ip)
  if (addresses.size === 0) await allocate('v4')
  await send('POST', `${app}/certificates/acme`, { hostname: host })
  await createMachine()
  await until(async () => (await send('GET', `${app}/machines`)).text.includes('"state":"started"'))
}

/** The addresses that serve visitors. */
async function listIps(): Promise<string[]> {
  const { ips } = JSON.parse((await send('GET', `${app}/ip_assignments`)).text)
  // The others cannot be reached from the host.
  const open = ips?.filter(({ type }: { type: string }) => type !== 'private_v6') ?? []
  return open.map(({ ip }: { ip: string }) => ip)
}

async function findDifference(): Promise<string | undefined> {
  const shown = await send('GET', `${app}/machines`)
  const machines: Machine[] = shown.status === 200 ? JSON.parse(shown.text) : []
  const strangers = reality.traces().strangers(machines.map(({ id }) => id))
  if (strangers.length > 0) return `left of machines that do not exist: ${JSON.stringify(strangers)}`
  for (const { id, state, failure } of machines) {
    if (state !== 'started') return `the machine is ${state}: ${failure}`
    if (reality.programs(id).length !== 1) return `the machine is ${state}, and no program runs`
  }
  return (await findVolumeProblem()) ?? (await findRouteProblem(machines.length > 0)) ?? findRowProblem()
}

async function findVolumeProblem(): Promise<string | undefined> {
  const shown = await send('GET', `${app}/volumes`)
  const volumes: { id: string; state: string }[] = shown.status === 200 ? JSON.parse(shown.text) : []
  const unfinished = volumes.find(({ state }) => state !== 'created')
  if (unfinished) return `a volume is ${unfinished.state}`
  const [ids, there] = [volumes.map(({ id }) => id).sort(), reality.volumes().sort()]
  return String(ids) === String(there) ? undefined : `there are the volumes ${there}, and the API shows ${ids}`
}

/** The edge serves the app at its addresses and host names, and at no others. */
async function findRouteProblem(isServed: boolean): Promise<string | undefined> {
  const mine = await listIps()
  const { certificates = [] } = JSON.parse((await send('GET', `${app}/certificates`)).text)
  const isMyHost = certificates.length > 0
  const served = (isMine: boolean) => (isMine && isServed ? 'served' : undefined)
  const atHost = await reality.ask(host)
  if (atHost !== served(isMyHost && mine.length > 0)) return `its host name serves ${atHost}, and it has ${mine}`
  for (const ip of addresses) {
    const seen = await reality.ask('shop.berth.localhost', ip)
    if (seen !== served(mine.includes(ip))) return `its address ${ip} serves ${seen}, and it has ${mine}`
  }
  return undefined
}

const tables = ['machine', 'volume', 'attachment', 'secret', 'secret_key', 'release', 'ip', 'network_policy', 'host']

/** Nothing is kept for apps that are gone, and none is being deleted. */
async function findRowProblem(): Promise<string | undefined> {
  const { rows: leaving } = await state.query(`select id, state from app where state not in ('active', 'deleted')`)
  if (leaving.length > 0) return `an app is ${leaving[0].state}`
  const tokens = await state.query(
    `select 1 from token join app on app.id = app_id where app.state = 'deleted' and revoked_at is null`,
  )
  if (tokens.rowCount !== 0) return 'a token of a deleted app is not revoked'
  for (const table of tables) {
    const { rowCount } = await state.query(
      `select 1 from ${table} join app on app.id = app_id where app.state = 'deleted'`,
    )
    if (rowCount !== 0) return `${rowCount} rows of ${table} are left of deleted apps`
  }
  return undefined
}

raceTest(
  'an app is as the API describes it after any two operations',
  () => ({ operations, prepare, findDifference, crash: () => platform.crash() }),
  {
    budgetMs: 15_000,
  },
)
