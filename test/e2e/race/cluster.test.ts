// Every pair of operations of a cluster at nearly the same moment: afterwards servers, roles, backups and attachments are
// those that the API describes, each cluster that is ready answers with its data, and nothing runs of deleted ones.
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { accessOf, ask, destroy, stateDatabase, untilReady } from '../../support/client.ts'
import { ClusterReality } from '../../support/race/cluster.ts'
import type { Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'
import { until } from '../../support/until.ts'

interface Cluster {
  id: string
  name: string
  status: string
  failure?: string
  attached_apps: { name: string }[]
}

interface Backup {
  id: string
  status: string
  pinned: boolean
}

const platform = new CrashingBerth(new Berth())
const reality = new ClusterReality(platform.berth)
const state = stateDatabase(platform.berth)
let id = ''
let label = ''

beforeAll(async () => {
  await platform.up()
  await state.connect()
  await send('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
}, 120_000)

afterAll(async () => {
  await state.end()
  await destroy(platform.berth)
})

const send = (method: string, path: string, body?: object) => platform.send('api', method, path, body)
const change = (method: string, rest: string, body?: object) => send(method, `/v1/postgres/${id}${rest}`, body)
const create = () => send('POST', '/v1/postgres', { org_slug: 'personal', plan: 'basic', name: 'race' })
const attachment = { app_name: 'shop', secret: { name: 'DATABASE_URL', value: 'postgres://race' } }

const operations: Operation[] = [
  { name: 'create', run: create },
  { name: 'delete', run: () => change('DELETE', '') },
  { name: 'undelete', run: () => change('POST', '/undelete', {}) },
  { name: 'restore', run: () => change('POST', '/restore', { backup_id: label, name: 'restored' }) },
  { name: 'fork', run: () => change('POST', '/fork', { name: 'forked' }) },
  { name: 'back up', run: () => change('POST', '/backups', {}) },
  { name: 'pin the backup', run: () => change('PATCH', `/backups/${label}`, { pinned: true }) },
  { name: 'unpin the backup', run: () => change('PATCH', `/backups/${label}`, { pinned: false }) },
  {
    name: 'change its settings',
    run: () => change('PATCH', '', { retention_days: 3, maintenance_window: 'sun 03:00' }),
  },
  { name: 'recover', run: () => change('POST', '/recover', {}) },
  { name: 'discard damaged data', run: () => change('DELETE', '/recover') },
  { name: 'drill', run: () => change('POST', '/drills', {}) },
  { name: 'upgrade', run: () => change('POST', '/upgrade', {}) },
  { name: 'attach an app', run: () => change('POST', '/attachments', attachment) },
  { name: 'detach the app', run: () => change('DELETE', '/attachments/shop') },
  { name: 'rotate a password', run: () => change('POST', '/users/fly-user/rotate_password', {}) },
  { name: 'create a database', run: () => change('POST', '/databases', { name: 'more' }) },
]

async function read<T>(path: string): Promise<T> {
  const { status, text } = await send('GET', path)
  if (status !== 200) throw new Error(`GET ${path}: ${status} ${text}`)
  return JSON.parse(text).data
}

const show = () => read<Cluster[]>('/v1/postgres?org_slug=personal')
const backupsOf = (cluster: string) => read<Backup[]>(`/v1/postgres/${cluster}/backups`)
/** A restore may wait for a backup and for other clusters. */
const maxSettleMs = 180_000

const isComplete = ({ status }: Backup) => status === 'completed'

/** Rounds begin with one cluster that is ready, has data and a backup. */
async function prepare(): Promise<void> {
  const kept = (await show()).find(({ status }) => status === 'ready')
  for (const other of await show()) if (other.id !== kept?.id) await send('DELETE', `/v1/postgres/${other.id}`)
  await until(async () => (await show()).every((cluster) => cluster.id === kept?.id), 60)
  id = kept?.id ?? JSON.parse((await create()).text).data.id
  await untilReady(platform.berth, id)
  const access = await accessOf(platform.berth, id)
  await ask(access, 'direct', 'create table if not exists held (id int)')
  await until(async () => {
    const backups = await backupsOf(id)
    label = backups.find(isComplete)?.id ?? ''
    if (backups.every(({ status }) => status === 'failed')) await change('POST', '/backups', {})
    return label !== ''
  }, 60)
  await change('DELETE', '/attachments/shop')
  await send('DELETE', '/v1/apps/shop/secrets/DATABASE_URL')
}

async function findDifference(): Promise<string | undefined> {
  const clusters = await show()
  const strangers = reality.traces().strangers(clusters.map((cluster) => cluster.id))
  if (strangers.length > 0) return `left of clusters that do not exist: ${JSON.stringify(strangers)}`
  for (const cluster of clusters) {
    const problem = (await serverProblem(cluster)) ?? (await backupProblem(cluster.id))
    if (problem !== undefined) return `${cluster.name}: ${problem}`
  }
  return (await attachmentProblem(clusters)) ?? findRowProblem()
}

async function serverProblem({ id, status, failure }: Cluster): Promise<string | undefined> {
  if (status !== 'ready') return `it is ${status}: ${failure ?? JSON.stringify(await findNote(id))}`
  const servers = reality.servers(id)
  if (servers.length !== 1) return `it is ready, and has the servers ${servers}`
  const access = await accessOf(platform.berth, id)
  for (const way of ['direct', 'pooler'] as const) {
    const answer = await ask(access, way, `select to_regclass('held') is not null as held`).catch(
      (error) => error.message,
    )
    if (answer?.[0]?.held === undefined) return `it is ready, and does not answer: ${answer}`
    // A new cluster of the same name has no data.
    if (!answer[0].held && (await isCopy(id))) return 'it has lost its data'
  }
  return undefined
}

/** What the background loop is doing with the cluster. */
async function findNote(id: string): Promise<object | undefined> {
  const { rows } = await state.query('select note, last_error from work where resource_id = $1', [id])
  return rows[0]
}

async function isCopy(id: string): Promise<boolean> {
  const { restore } = await read<{ restore?: object | null }>(`/v1/postgres/${id}`)
  return restore !== undefined && restore !== null
}

async function backupProblem(id: string): Promise<string | undefined> {
  const backups = await backupsOf(id)
  const unfinished = backups.find(({ status }) => status === 'queued' || status === 'running')
  if (unfinished) return `the backup ${unfinished.id} is ${unfinished.status}`
  const labels = backups.filter(isComplete).map((backup) => backup.id)
  const there = reality.backups(id)
  return String(labels.sort()) === String(there.sort()) ? undefined : `it has the backups ${there}, and shows ${labels}`
}

/** The secret of an attachment comes and goes with it. The deletion of the cluster leaves it in the app. */
async function attachmentProblem(clusters: Cluster[]): Promise<string | undefined> {
  const attached = clusters.filter((cluster) => cluster.attached_apps.some(({ name }) => name === 'shop'))
  const { status } = await send('GET', '/v1/apps/shop/secrets/DATABASE_URL')
  if (status === 200 && !clusters.some((cluster) => cluster.id === id)) return undefined
  const isRight = (status === 200) === attached.length > 0
  return isRight ? undefined : `the app is attached to ${attached.length} clusters, and its secret answers ${status}`
}

/** Nothing is done for clusters that are gone. */
async function findRowProblem(): Promise<string | undefined> {
  const { rows } = await state.query(
    `select cluster.state, backup.state as backup, drill.state as drill from cluster
       left join backup on backup.cluster_id = cluster.id and backup.state in ('queued', 'running')
       left join drill on drill.cluster_id = cluster.id and drill.state <> 'done'
     where cluster.state in ('creating', 'initializing', 'deleting')
       or (backup.state is not null or drill.state is not null)`,
  )
  return rows.length === 0 ? undefined : `work is not finished: ${JSON.stringify(rows)}`
}

raceTest(
  'clusters are as the API describes them after any two operations',
  () => ({ operations, prepare, findDifference, crash: () => platform.crash(), maxSettleMs }),
  {
    budgetMs: 15_000,
  },
)
