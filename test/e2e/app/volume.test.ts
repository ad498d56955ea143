// Volumes, secrets and addresses of an app.
import { readdirSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
const isRoot = process.getuid!() === 0
/** Growing a mounted filesystem needs CAP_SYS_RESOURCE. */
const rights = /^CapEff:\t([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))![1]!
const growsMounted = isRoot && (BigInt(`0x${rights}`) & (1n << 24n)) !== 0n
let control: Awaited<ReturnType<Berth['up']>>
let registry: Registry
let image: string
const script = 'trap "exit 0" INT TERM; while :; do sleep 0.05; done'

beforeAll(async () => {
  registry = await startRegistry()
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  control = await berth.up()
  await ok('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

const ok = (method: string, path: string, body?: object) => berth.ok(method, path, body)

const volumes = '/v1/apps/shop/volumes'
const machines = '/v1/apps/shop/machines'
const wait = (id: string, state: string) => ok('GET', `${machines}/${id}/wait?state=${state}&timeout=60`)
const exec = async (id: string, text: string) =>
  (await ok('POST', `${machines}/${id}/exec`, { command: ['sh', '-c', text] })).stdout.trim()

async function started(volume?: string, more = {}): Promise<string> {
  const mounts = volume === undefined ? {} : { mounts: [{ volume, path: '/data', ...more }] }
  const { id } = await ok('POST', machines, { config: { image, ...mounts } })
  await wait(id, 'started')
  return id
}

async function gone(id: string): Promise<void> {
  await ok('DELETE', `${machines}/${id}?force=true`)
  await until(async () => (await ok('GET', `${machines}/${id}`)).state === 'destroyed')
}

const created = (id: string) => until(async () => (await ok('GET', `${volumes}/${id}`)).state === 'created')

/** Lists loop devices of files in this home. */
function loopsOfHome(): string[] {
  return readdirSync('/sys/block').flatMap((name) => {
    try {
      const file = readFileSync(`/sys/block/${name}/loop/backing_file`, 'utf8').trim()
      return file.startsWith(berth.home) ? [file] : []
    } catch {
      return []
    }
  })
}

test('a volume survives machines and the control plane, can be copied while it is used, and grows', async () => {
  const { id } = await ok('POST', volumes, { name: 'data', size_gb: 1 })
  let machine = await started(id)
  expect(await ok('GET', `${volumes}/${id}`)).toMatchObject({ attached_machine_id: machine, state: 'created' })
  await exec(machine, 'echo one > /data/file; chown 7:8 /data/file; sync')
  const other = await berth.call('POST', machines, { config: { image, mounts: [{ volume: id, path: '/data' }] } })
  expect(other.status).toBe(412)
  expect((await berth.call('DELETE', `${volumes}/${id}`)).status).toBe(412)
  if (isRoot) {
    expect(await exec(machine, 'dd if=/dev/zero of=/data/large bs=1M count=1200 2>&1; rm -f /data/large')).toMatch(
      /No space left/,
    )
    await exec(machine, 'dd if=/dev/urandom of=/data/kept bs=1M count=30 2>/dev/null; sync')
    await until(async () => (await ok('GET', `${volumes}/${id}`)).bytes_used > 30_000_000)
  }

  // The control plane is restarted while a snapshot is made.
  await ok('POST', `${volumes}/${id}/snapshots`)
  await end(control)
  control = await berth.up()
  await until(async () => (await ok('GET', `${volumes}/${id}/snapshots`))[0].status === 'created')
  const [snapshot] = await ok('GET', `${volumes}/${id}/snapshots`)
  await exec(machine, 'echo two > /data/file')

  const grown = await ok('PUT', `${volumes}/${id}/extend`, { size_gb: 2 })
  expect(grown).toMatchObject({ needs_restart: isRoot && !growsMounted, volume: { size_gb: 2 } })
  await created(id)
  const sizeMb = async () => Number((await exec(machine, 'df -m /data | tail -n 1')).split(/\s+/)[1])
  if (growsMounted) expect(await sizeMb()).toBeGreaterThan(1500)
  await ok('POST', `${machines}/${machine}/restart`)
  await until(async () => (await exec(machine, 'df -m /data | tail -n 1').catch(() => '')) !== '')
  await wait(machine, 'started')
  if (isRoot) expect(await sizeMb()).toBeGreaterThan(1500)
  await gone(machine)
  expect((await ok('GET', `${volumes}/${id}`)).attached_machine_id).toBe(null)

  machine = await started(id)
  expect(await exec(machine, 'cat /data/file; stat -c %u:%g /data/file')).toBe('two\n7:8')
  const copy = await ok('POST', volumes, { name: 'copy', snapshot_id: snapshot.id })
  const second = await started(copy.id)
  expect(await exec(second, 'cat /data/file; stat -c %u:%g /data/file')).toBe('one\n7:8')
  await gone(second)
  await gone(machine)
  await until(() => loopsOfHome().length === 0)
})

test.runIf(isRoot)('a volume grows automatically while a program fills it', async () => {
  const { id } = await ok('POST', volumes, { name: 'filling', size_gb: 1 })
  const grows = { extend_threshold_percent: 50, add_size_gb: 1, size_gb_limit: 2 }
  const machine = await started(id, grows)
  await exec(machine, 'dd if=/dev/zero of=/data/large bs=1M count=600 2>/dev/null; sync')
  await until(async () => (await ok('GET', `${volumes}/${id}`)).size_gb === 2, 60)
  await created(id)
  if (!growsMounted) await ok('POST', `${machines}/${machine}/restart`)
  await until(async () => (await ok('GET', `${volumes}/${id}`)).bytes_total > 1.9e9, 60)
  await gone(machine)
})

test('machines get the secrets from the time of their creation', async () => {
  await ok('POST', '/v1/apps/shop/secrets', { values: { PASSWORD: 'first' } })
  const machine = await started()
  await ok('POST', '/v1/apps/shop/secrets', { values: { PASSWORD: 'second' } })
  expect(await exec(machine, 'echo $PASSWORD')).toBe('first')
  await ok('POST', `${machines}/${machine}/restart`)
  await wait(machine, 'started')
  await until(async () => (await exec(machine, 'echo $PASSWORD').catch(() => '')) === 'first')
  const updated = await ok('POST', `${machines}/${machine}`, { config: { image } })
  await ok('GET', `${machines}/${machine}/wait?instance_id=${updated.instance_id}&timeout=60`)
  expect(await exec(machine, 'echo $PASSWORD')).toBe('second')
  expect(berth.output).not.toContain('second')
  await gone(machine)
})

test('a deleted app leaves nothing behind', async () => {
  const { id } = await ok('POST', volumes, { name: 'last', size_gb: 1 })
  await started(id)
  await ok('POST', '/v1/apps/shop/ip_assignments', { type: 'v4' })
  await ok('DELETE', '/v1/apps/shop?force=true')
  await until(() => loopsOfHome().length === 0)
  await until(
    () => readdirSync(`${berth.home}/volume`).length === 0 && readdirSync(`${berth.home}/snapshot`).length === 0,
  )
})
