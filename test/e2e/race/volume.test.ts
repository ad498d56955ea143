// Every pair of operations of a volume and of the machines that mount it at nearly the same moment: afterwards the files,
// their sizes and what machines have mounted are as the API describes them.
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { MachineReality } from '../../support/race/machine.ts'
import type { Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

interface Volume {
  id: string
  state: string
  size_gb: number
  attached_machine_id: string | null
}

interface Machine {
  id: string
  state: string
  failure?: string
  config: { mounts?: { volume: string; path: string }[] }
}

const platform = new CrashingBerth(new Berth())
const reality = new MachineReality(platform.berth)
let registry: Registry
let image: string
let app = ''
let volume = ''
let machine = ''

beforeAll(async () => {
  registry = await startRegistry()
  const script = 'trap "exit 0" INT TERM; while :; do echo x >> /data/file; sleep 0.02; done'
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  await platform.up()
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(platform.berth)
})

const send = (method: string, path: string, body?: object) => platform.send('api', method, path, body)
const change = (method: string, rest: string, body?: object) => send(method, `${app}/volumes/${volume}${rest}`, body)
const config = (mounts: object[]) => ({ image, mounts })
const byId = () => [{ volume, path: '/data' }]
const byName = [{ name: 'data', path: '/data' }]
const update = (mounts: object[]) => send('POST', `${app}/machines/${machine}`, { config: config(mounts) })

const operations: Operation[] = [
  { name: 'create', run: () => send('POST', `${app}/volumes`, { name: 'data', size_gb: 1 }) },
  { name: 'extend', run: () => change('PUT', '/extend', { size_gb: 2 }) },
  { name: 'extend further', run: () => change('PUT', '/extend', { size_gb: 3 }) },
  { name: 'fork', run: () => send('POST', `${app}/volumes`, { name: 'copy', source_volume_id: volume }) },
  { name: 'take a snapshot', run: () => change('POST', '/snapshots') },
  { name: 'copy a snapshot', run: copySnapshot },
  { name: 'change its settings', run: () => change('PUT', '', { snapshot_retention: 2 }) },
  { name: 'delete', run: () => change('DELETE', '') },
  { name: 'mount by id', run: () => send('POST', `${app}/machines`, { config: config(byId()) }) },
  { name: 'mount by name', run: () => send('POST', `${app}/machines`, { config: config(byName) }) },
  { name: 'mount by an update', run: () => update(byId()) },
  { name: 'unmount by an update', run: () => update([]) },
  { name: 'stop the machine', run: () => send('POST', `${app}/machines/${machine}/stop`, {}) },
  { name: 'start the machine', run: () => send('POST', `${app}/machines/${machine}/start`) },
  { name: 'restart the machine', run: () => send('POST', `${app}/machines/${machine}/restart`) },
  { name: 'delete the machine', run: () => send('DELETE', `${app}/machines/${machine}?force=true`) },
]

async function copySnapshot() {
  const snapshots = await read<{ id: string }[]>(`${app}/volumes/${volume}/snapshots`).catch(() => [])
  return send('POST', `${app}/volumes`, { name: 'copy', snapshot_id: snapshots[0]?.id ?? 'vs_0000000000000000' })
}

async function read<T>(path: string): Promise<T> {
  const { status, text } = await send('GET', path)
  if (status !== 200) throw new Error(`GET ${path}: ${status} ${text}`)
  return JSON.parse(text)
}

/** Rounds begin with a volume that is mounted, one beside a machine without a mount and one of a stopped machine in turn. */
const beginnings = ['mounted', 'free', 'stopped'] as const
let rounds = 0

/** Each round has an app of its own, because deleted volumes are kept for a day. That of the last one is removed meanwhile. */
async function prepare(): Promise<void> {
  const beginning = beginnings[rounds++ % beginnings.length]!
  if (app !== '') await send('DELETE', `${app}?force=true`)
  const name = `shop-${rounds}`
  app = `/v1/apps/${name}`
  await send('POST', '/v1/apps', { app_name: name, org_slug: 'personal' })
  volume = JSON.parse((await send('POST', `${app}/volumes`, { name: 'data', size_gb: 1 })).text).id
  const mounts = beginning === 'free' ? [] : byId()
  machine = JSON.parse((await send('POST', `${app}/machines`, { config: config(mounts) })).text).id
  await until(async () => (await read<Machine>(`${app}/machines/${machine}`)).state === 'started')
  await until(async () => (await read<Volume>(`${app}/volumes/${volume}`)).state === 'created')
  await change('POST', '/snapshots')
  await until(
    async () => (await read<{ status: string }[]>(`${app}/volumes/${volume}/snapshots`))[0]?.status === 'created',
  )
  if (beginning === 'stopped') {
    await send('POST', `${app}/machines/${machine}/stop`, {})
    await until(async () => (await read<Machine>(`${app}/machines/${machine}`)).state === 'stopped')
  }
}

async function findDifference(): Promise<string | undefined> {
  const volumes = await read<Volume[]>(`${app}/volumes`)
  const machines = await read<Machine[]>(`${app}/machines`)
  const strangers = reality.traces().strangers(machines.map(({ id }) => id))
  if (strangers.length > 0) return `left of machines that do not exist: ${JSON.stringify(strangers)}`
  return (
    volumes.map((one) => volumeProblem(one, machines)).find(Boolean) ??
    machines.map((one) => machineProblem(one, volumes)).find(Boolean) ??
    (await findFileProblem(volumes))
  )
}

function volumeProblem(described: Volume, machines: Machine[]): string | undefined {
  const { id, state, attached_machine_id: holder } = described
  if (state !== 'created' && state !== 'pending_destroy') return `the volume is ${state}`
  const mounting = machines.filter(({ config }) => config.mounts?.some((mount) => mount.volume === id))
  if (String(mounting.map((one) => one.id)) !== String(holder ?? ''))
    return `the volume is attached to ${holder}, and the machines that mount it are ${JSON.stringify(mounting)}`
  const isUsed = mounting.some((one) => one.state === 'started')
  if (reality.disks().some((disk) => disk.id === id) !== isUsed) return `the volume has a loop device, or lacks one`
  // A filesystem that is mounted may be allowed to grow at the next start only.
  if (!isUsed) return reality.diskProblem(`volume/${id}`, mounting.length > 0 ? undefined : described.size_gb)
  return undefined
}

function machineProblem({ id, state, failure, config }: Machine, volumes: Volume[]): string | undefined {
  if (state !== 'started' && state !== 'stopped') return `the machine is ${state}: ${failure}`
  const [program] = state === 'started' ? reality.programs(id) : reality.processes(id)
  if ((program !== undefined) !== (state === 'started')) return `the machine is ${state}, and ${program?.args} runs`
  if (!program) return undefined
  const wanted = (config.mounts ?? []).map(({ volume, path }) => `${volume} at ${path}`)
  const mounts = reality.mounts(program)
  if (String(wanted) !== String(mounts)) return `the machine has mounted ${mounts}, and not ${wanted}`
  const known = new Set(volumes.map((one) => one.id))
  return (config.mounts ?? []).every((mount) => known.has(mount.volume)) ? undefined : 'it mounts no volume of the app'
}

async function findFileProblem(volumes: Volume[]): Promise<string | undefined> {
  const ids = volumes.map(({ id }) => id)
  if (String(reality.volumes().sort()) !== String(ids.sort()))
    return `there are the volumes ${reality.volumes()}, and the API shows ${ids}`
  const lists = await Promise.all(
    ids.map((id) => read<{ id: string; status: string }[]>(`${app}/volumes/${id}/snapshots`)),
  )
  const snapshots = lists.flat()
  const unfinished = snapshots.find(({ status }) => status !== 'created')
  if (unfinished) return `a snapshot is ${unfinished.status}`
  const names = snapshots.map(({ id }) => id).sort()
  if (String(reality.snapshots().sort()) !== String(names))
    return `there are the snapshots ${reality.snapshots()}, and the API shows ${names}`
  return names.map((name) => reality.diskProblem(`snapshot/${name}`)).find(Boolean)
}

raceTest(
  'volumes are as the API describes them after any two operations',
  () => ({ operations, prepare, findDifference, crash: () => platform.crash() }),
  {
    budgetMs: 15_000,
  },
)
