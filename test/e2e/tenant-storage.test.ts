// Tenants that try to write more than their disk, on a host whose own file system has no limits. The platform is moved to
// a storage pool first, with everything in it.
import { execFile, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { promisify } from 'node:util'
import { type Sprite, SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../support/berth.ts'
import { accessOf, ask, destroy, readyCluster, untilReady } from '../support/client.ts'
import { busyboxImage } from '../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../support/registry.ts'
import { until } from '../support/until.ts'

const run = promisify(execFile)
const isRoot = process.getuid?.() === 0
const gigabyte = 1024 ** 3

describe.runIf(isRoot)('with a storage pool', () => {
  const berth = new Berth()
  let registry: Registry
  let image: string
  let cluster: string
  let neighbor: string
  let machine: string
  let sandbox: Sprite

  const machines = '/v1/apps/shop/machines'
  const sql = async (id: string, text: string) => ask(await accessOf(berth, id), 'direct', text)
  const connect = () => new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
  /** Returns what the script prints, whether it succeeds or not. */
  const inSandbox = async (script: string) =>
    String((await sandbox.execFile('sh', ['-c', `{ ${script}; } 2>&1 || :`])).stdout).trim()
  const inMachine = async (script: string) => {
    const { stdout, stderr } = await berth.ok('POST', `${machines}/${machine}/exec`, { command: ['sh', '-c', script] })
    return `${stdout}${stderr}`.trim()
  }
  /** Runs a program as the user of a cluster, as native code in the server would. */
  const asCluster = (id: string, ...command: string[]) => {
    const data = `${berth.home}/clusters/${id}/data`
    const uid = String(statSync(data).uid)
    return spawnSync('setpriv', ['--reuid', uid, '--regid', uid, '--clear-groups', ...command], {
      cwd: data,
      encoding: 'utf8',
    })
  }

  beforeAll(async () => {
    registry = await startRegistry()
    const script = 'trap "exit 0" INT TERM; while :; do sleep 0.05; done'
    image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
    const control = await berth.up()
    cluster = await readyCluster(berth, { disk_size_gb: 1 })
    await sql(cluster, 'create table kept as select generate_series(1, 1000) as n')
    await berth.ok('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
    const config = { image, rootfs: { persist: 'always', size_gb: 1 } }
    machine = (await berth.ok('POST', machines, { config })).id
    await berth.ok('GET', `${machines}/${machine}/wait?state=started&timeout=60`)
    await inMachine('echo kept > /kept')
    sandbox = await connect().createSprite('small', { storageGB: 1 })
    await inSandbox('echo first > kept')
    for await (const _ of await sandbox.createCheckpoint());
    await inSandbox('echo second > kept')
    await expect(berth.cli('storage', 'create', '--size', '9G', '--sparse')).rejects.toThrow('running')
    await end(control, 'SIGTERM')
    await berth.cli('storage', 'create', '--size', '9G', '--sparse', '--stop')
    await berth.up()
    sandbox = connect().sprite('small')
    await untilReady(berth, cluster)
    neighbor = await readyCluster(berth, { disk_size_gb: 1 })
  }, 400_000)

  afterAll(async () => {
    await registry?.close()
    await destroy(berth)
    await until(() => loopsOfHome(berth.home).length === 0)
  })

  test('everything is there after the move', async () => {
    await until(async () => (await sql(cluster, 'select count(*)::int as n from kept'))[0]?.n === 1000)
    expect(await inSandbox('cat kept')).toBe('second')
    await until(async () => (await inMachine('cat /kept').catch(() => '')) === 'kept')
    expect(JSON.parse((await berth.cli('storage', 'show', '--json')).stdout)).toMatchObject({
      pool: true,
      mounted: true,
      limits: true,
      source: `${berth.home}/pool/data.img`,
    })
  })

  test('everything that was moved gets its limit', async () => {
    const [name = ''] = readdirSync(`${berth.home}/sandbox`)
    const limited = [`sandbox/${name}/layer`, `machine/${machine}/layer`, `clusters/${cluster}`]
    // The loop looks at each resource twice a minute.
    await until(
      async () => (await Promise.all(limited.map((path) => hasLimit(`${berth.home}/${path}`)))).every(Boolean),
      80,
    )
    // Btrfs counts what was moved in the background.
    await run('btrfs', ['quota', 'rescan', '-W', berth.home])
  })

  test('a sandbox of 1 GB cannot write more', async () => {
    expect(await inSandbox('fallocate -l 700M one && echo made')).toBe('made')
    expect(await inSandbox('fallocate -l 700M two && echo made')).toMatch(/quota exceeded|No space left/)
    expect(await inSandbox('cd /usr/local && fallocate -l 700M two && echo made')).toMatch(
      /quota exceeded|No space left/,
    )
    expect(await inSandbox('head -c 400M /dev/zero > two && sync two && echo made')).toMatch(
      /quota exceeded|No space left/,
    )
    expect(await inSandbox('rm -f one two; sync; echo fine')).toBe('fine')
    expect((await berth.ok('GET', `/v1/postgres/${neighbor}`)).data.health).toMatchObject({ status: 'ok' })
  })

  test('a checkpoint from before the move is restored, and its limit holds', async () => {
    const messages = []
    for await (const message of await sandbox.restoreCheckpoint('v1')) messages.push(message)
    expect(messages.at(-1)).toMatchObject({ type: 'complete' })
    expect(await inSandbox('cat kept')).toBe('first')
    expect(await inSandbox('fallocate -l 1500M one && echo made')).toMatch(/quota exceeded|No space left/)
  })

  test('a machine of 1 GB cannot write more', async () => {
    // The supervisor starts it before the platform, which then starts it again with its limit.
    await until(() => readFileSync(`${berth.home}/machine/${machine}/box.conf`, 'utf8').includes('root-limit'))
    await until(async () => (await inMachine('fallocate -l 700M /one && echo made').catch(() => '')) === 'made')
    expect(await inMachine('fallocate -l 700M /two && echo made')).toMatch(/quota exceeded|No space left/i)
    expect(await inMachine('rm -f /one /two; echo fine')).toBe('fine')
  })

  test('a cluster cannot write much more than its disk, and its neighbor does not notice', async () => {
    expect(asCluster(cluster, 'fallocate', '-l', '1G', 'one').status).toBe(0)
    const second = asCluster(cluster, 'fallocate', '-l', '2G', 'two')
    expect(second.stderr).toMatch(/quota exceeded|No space left/)
    expect(asCluster(neighbor, 'fallocate', '-l', '1G', 'one').status).toBe(0)
    await sql(neighbor, 'create table own as select generate_series(1, 1000) as n')
    for (const id of [cluster, neighbor]) expect(asCluster(id, 'rm', '-f', 'one', 'two').status).toBe(0)
    await until(async () => (await sql(cluster, 'select count(*)::int as n from kept'))[0]?.n === 1000)
  })

  test('a cluster that has used up its disk with SQL recovers, and its neighbor does not notice', async () => {
    // Leaves less than 16 MB, so that no statement needs to write gigabytes.
    for (let megabytes = 1024; megabytes >= 8; megabytes /= 2)
      while (asCluster(cluster, 'fallocate', '-l', `${megabytes}M`, `filler-${randomUUID()}`).status === 0);
    const write = `insert into kept select generate_series(1, 2000000); checkpoint`
    await expect(sql(cluster, write)).rejects.toThrow()
    expect(await sql(neighbor, 'insert into own values (1) returning 1 as n')).toEqual([{ n: 1 }])
    await until(
      async () => (await sql(cluster, 'select count(*)::int as n from kept').catch(() => []))[0]?.n === 1000,
      80,
    )
    const fillers = readdirSync(`${berth.home}/clusters/${cluster}/data`).filter((name) => name.startsWith('filler-'))
    expect(asCluster(cluster, 'rm', ...fillers).status).toBe(0)
    await until(
      async () => (await sql(cluster, 'insert into kept values (0) returning 1 as n').catch(() => [])).length === 1,
      80,
    )
    await sql(cluster, 'delete from kept where n = 0')
  })

  test('the pool is unmounted with the platform and mounted again by the next start', async () => {
    await berth.cli('down')
    expect(readdirSync(berth.home).sort()).toEqual(['number', 'pool'])
    // A process of another platform that is just starting may hold a copy of the mount for a moment.
    await until(() => loopsOfHome(berth.home).length === 0)
    await expect(berth.cli('status')).rejects.toMatchObject({ code: 1 })
    expect(readdirSync(berth.home).sort()).toEqual(['number', 'pool'])
    await berth.up()
    await until(async () => (await sql(cluster, 'select count(*)::int as n from kept'))[0]?.n === 1000)
  })

  test('the pool grows while the platform runs', async () => {
    const before = JSON.parse((await berth.cli('storage', 'show', '--json')).stdout).size_bytes
    const { stdout } = await berth.cli('storage', 'grow', '--size', '12G', '--json')
    expect(before).toBeLessThan(10 * gigabyte)
    expect(JSON.parse(stdout).size_bytes).toBeGreaterThan(11 * gigabyte)
    await expect(berth.cli('storage', 'grow', '--size', '5G')).rejects.toThrow('cannot become smaller')
    expect(await sql(cluster, 'select count(*)::int as n from kept')).toEqual([{ n: 1000 }])
  })

  test('a second pool is refused', async () => {
    await expect(berth.cli('storage', 'create', '--size', '1G')).rejects.toThrow('has a storage pool already')
    expect((await run('findmnt', ['-n', '-o', 'FSTYPE', '--mountpoint', berth.home])).stdout.trim()).not.toBe('')
  })
})

/** The quota group of a subvolume, which may have no limit yet. */
async function hasLimit(directory: string): Promise<boolean> {
  const { stdout } = await run('btrfs', ['qgroup', 'show', '-rf', '--raw', directory]).catch(() => ({ stdout: '' }))
  return /^0\/\d+(\s+\d+){3}/m.test(stdout)
}

/** Lists the files of this home that loop devices are attached to. */
function loopsOfHome(home: string): string[] {
  const files = readdirSync('/sys/block').map((name) => `/sys/block/${name}/loop/backing_file`)
  return files
    .filter((file) => existsSync(file))
    .map((file) => readFileSync(file, 'utf8').trim())
    .filter((file) => file.startsWith(home))
}
