// The commands for machines, volumes, secrets, addresses and certificates.
import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { type Result, runCli } from '../../support/cli.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage, descriptorOf, makeImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
// Commands read the name of the app from the file in this directory.
const directory = mkdtempSync(join(tmpdir(), 'berth-shop-'))
let registry: Registry
let image: string
const script = 'trap "exit 0" INT TERM; echo "hello from $FLY_MACHINE_ID"; while :; do sleep 0.05; done'

beforeAll(async () => {
  writeFileSync(`${directory}/berth.toml`, 'app = "shop"\n')
  registry = await startRegistry()
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  await berth.up()
  await said('apps', 'create', 'shop')
}, 120_000)

afterAll(async () => {
  rmSync(directory, { recursive: true })
  await registry?.close()
  await destroy(berth)
})

const run = (...args: string[]): Promise<Result> => runCli(berth, args, { cwd: directory })
const feed = (input: string, ...args: string[]) => runCli(berth, args, { cwd: directory, input })

async function said(...args: string[]): Promise<string> {
  const { code, out, err } = await run(...args)
  if (code !== 0) throw new Error(`${args.join(' ')} ended with ${code}: ${err}`)
  return out
}

const machine = (...args: string[]) => said('machine', ...args)
const json = async (...args: string[]) => JSON.parse(await said(...args.slice(0, 1), '--json', ...args.slice(1)))
const inside = (id: string, ...words: string[]) => said('machine', 'exec', id, '--', ...words)

describe('a machine', () => {
  test('can be run, shown, stopped, started, updated, cloned and destroyed', async () => {
    const shown = await run('machine', 'run', image, '--name', 'one', '--env', 'COLOUR=blue')
    expect(shown.err).toMatch(/^Machine [0-9a-f]{14} is starting \(\d+ s\)\n$/)
    const [, id = ''] = /^Machine ([0-9a-f]{14}) \(one\) is started\.\n$/.exec(shown.out) ?? []
    expect(await inside(id, 'sh', '-c', 'echo $COLOUR')).toBe('blue\n')

    const [head, line] = (await machine('list')).split('\n')
    expect(head).toMatch(/^ID +NAME +STATE +CHECKS +REGION +GROUP +IMAGE +PRIVATE ADDRESS +CREATED$/)
    expect(line).toMatch(new RegExp(`^${id} +one +started +- +local +- +box:latest `))
    expect(await machine('status', id)).toMatch(/^state +started$.*^size +1 shared CPU, 256 MB$.*^TIME +EVENT/ms)
    expect((await json('machine', 'status', id)).config.env).toEqual({ COLOUR: 'blue' })

    expect(await machine('stop', id)).toBe(`Machine ${id} is stopped.\n`)
    expect(await machine('wait', id, '--state', 'stopped')).toBe(`Machine ${id} is stopped.\n`)
    expect(await machine('events', id)).toMatch(/ exit +stopped +flyd +exited with code 0$/m)
    expect(await machine('start', id)).toBe(`Machine ${id} is started.\n`)
    expect(await machine('suspend', id)).toBe(`Machine ${id} is suspended.\n`)
    await machine('start', id)
    expect(await machine('restart', id)).toBe(`Machine ${id} is started.\n`)
    expect(await machine('cordon', id)).toBe(`Machine ${id} is cordoned.\n`)
    expect(await machine('list')).toContain('started, cordoned')
    await machine('uncordon', id)

    const updated = await machine('update', id, '--env', 'SHAPE=round', '--vm-memory', '512mb', '--metadata', 'role=x')
    expect(updated).toBe(`Updated machine ${id}; it is started.\n`)
    expect(await inside(id, 'sh', '-c', 'echo $COLOUR $SHAPE')).toBe('blue round\n')
    expect((await json('machine', 'status', id)).config.guest.memory_mb).toBe(512)

    const clone = await json('machine', 'clone', id)
    expect(clone).toMatchObject({ state: 'started', config: { env: { COLOUR: 'blue', SHAPE: 'round' } } })
    const spare = await json('machine', 'create', image, '--name', 'spare')
    expect(spare.state).toBe('created')
    const refused = await run('machine', 'destroy', id, '--yes')
    expect([refused.code, refused.err]).toEqual([1, expect.stringContaining('unable to destroy machine')])
    await machine('destroy', id, clone.id, spare.id, '--force', '--yes')
    expect((await run('machine', 'list')).err).toContain('App shop has no machines')
  }, 120_000)

  test('reports the exit of its commands and of its program', async () => {
    const { id } = await json('machine', 'run', image)
    const failed = await run('machine', 'exec', id, '--', 'sh', '-c', 'echo out; echo err >&2; exit 3')
    expect(failed).toEqual({ code: 3, out: 'out\n', err: 'err\n' })
    const fed = await feed('fed', 'machine', 'exec', id, '--stdin', '--', 'cat')
    expect(fed).toEqual({ code: 0, out: 'fed\n', err: '' })
    const once = await json('machine', 'run', image, '--rm', '--restart', 'no', '--', 'true')
    expect(['started', 'destroyed', 'stopped']).toContain(once.state)
    const absent = await run('machine', 'run', `${registry.host}/absent`)
    expect([absent.code, absent.err]).toEqual([
      1,
      expect.stringMatching(/error: machine \w+ is destroyed, not started: /),
    ])
    const misused = await run('machine', 'run', image, '--port', 'web')
    expect([misused.code, misused.err]).toEqual([2, expect.stringContaining('--port must be of the form')])
    await machine('destroy', id, '--force', '--yes')
  }, 120_000)

  test('runs images that are files of the host, which only the root token may name', async () => {
    const made = makeImage(busyboxImage({ Cmd: ['sh', '-c', script] }))
    mkdirSync(`${directory}/layout/blobs/sha256`, { recursive: true })
    for (const { digest, content } of [made.manifest, made.config, ...made.layers])
      writeFileSync(`${directory}/layout/blobs/${digest.replace(':', '/')}`, content)
    const named = { ...descriptorOf(made.manifest), annotations: { 'org.opencontainers.image.ref.name': '1.2' } }
    writeFileSync(`${directory}/layout/index.json`, JSON.stringify({ schemaVersion: 2, manifests: [named] }))
    writeFileSync(`${directory}/layout/oci-layout`, '{"imageLayoutVersion":"1.0.0"}')
    writeFileSync(`${directory}/root.tar`, made.layers[0]!.tar)
    const { id } = await json('machine', 'run', `oci:${directory}/layout:1.2`)
    await until(async () => (await machine('logs', id)).includes(`hello from ${id}`))
    const { id: other } = await json('machine', 'run', `tar:${directory}/root.tar`, '--', '/bin/sh', '-c', script)
    await until(async () => (await machine('logs', other)).includes(`hello from ${other}`))
    await machine('destroy', id, other, '--force', '--yes')
    const { token } = await json('tokens', 'create', '--kind', 'org')
    const tenant = { environment: { ...berth.environment, BERTH_TOKEN: token } }
    const refused = await runCli(tenant, ['machine', 'run', `tar:${directory}/root.tar`, '-a', 'shop'])
    expect([refused.code, refused.err]).toEqual([1, expect.stringContaining('takes the root token')])
  }, 120_000)

  test('shows its processes, receives signals and is started by a schedule', async () => {
    const { id } = await json('machine', 'run', image, '--restart', 'no', '--schedule', 'daily')
    expect((await json('machine', 'status', id)).config.schedule).toBe('daily')
    expect(await machine('ps', id)).toMatch(/^PID +MEMORY +AGE +LISTENS ON +COMMAND\n\d+ +\d.*\bsh /)
    expect((await json('machine', 'ps', id))[0]).toMatchObject({ pid: expect.any(Number), listen_sockets: [] })
    await machine('update', id, '--schedule', 'never')
    expect((await json('machine', 'status', id)).config).not.toHaveProperty('schedule')
    expect(await machine('signal', id, 'SIGTERM')).toBe(`Sent SIGTERM to machine ${id}.\n`)
    await machine('wait', id, '--state', 'stopped')
    const refused = await run('machine', 'signal', id, 'SIGNONE')
    expect(refused.code).toBe(1)
    await machine('destroy', id, '--yes')
  }, 120_000)

  test('whose program exits at once is reported with its last output', async () => {
    const script = 'echo no settings >&2; exit 3'
    for (const options of [
      ['--restart', 'no'],
      ['--restart', 'no', '--rm'],
    ]) {
      const { code, err } = await run('machine', 'run', image, ...options, '--', 'sh', '-c', script)
      expect([code, err]).toEqual([1, expect.stringMatching(/^error: the program of machine \w+ exited with code 3$/m)])
      expect(err).toMatch(/^Last log lines of machine \w+:\n {2}.*no settings$/ms)
    }
    const looping = await run(
      'machine',
      'run',
      image,
      '--restart',
      'always',
      '--name',
      'loop',
      '--',
      'sh',
      '-c',
      script,
    )
    expect([looping.code, looping.err]).toEqual([
      1,
      expect.stringMatching(/^error: .* exited with code 3 right after it was started, and is restarted$/m),
    ])
    const [, id = ''] = /^error: the program of machine (\w+)/m.exec(looping.err) ?? []
    await until(async () => / loop +started, waiting to restart, \d+ restarts? /.test(await machine('list')), 60)
    expect(await machine('status', id)).toMatch(/^last exit +its program was restarted .* last exited with code 3/m)
    await machine('destroy', id, '--force', '--yes')
  }, 120_000)

  test('has logs that can be shown and followed', async () => {
    const { id } = await json('machine', 'run', image)
    await until(async () => (await machine('logs', id)).includes(`hello from ${id}`))
    const follower = spawn(new URL('../../../berth', import.meta.url).pathname, ['logs', '-f', '-n', '5'], {
      env: berth.environment,
      cwd: directory,
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    let heard = ''
    follower.stdout.on('data', (data) => {
      heard += data
    })
    try {
      await until(() => heard.includes(`${id}[local] hello from ${id}`))
      const { id: later } = await json('machine', 'run', image)
      await until(() => heard.includes(`${later}[local] hello from ${later}`))
      await machine('destroy', later, '--force', '--yes')
    } finally {
      await end(follower, 'SIGTERM')
    }
    expect((await run('logs', '--json', '-n', '1')).out).toMatch(/^{"timestamp":"[^\n]+\n$/)
    await machine('destroy', id, '--force', '--yes')
  }, 120_000)
})

describe('the resources of an app', () => {
  test('volumes can be created, mounted, extended, snapshotted and destroyed', async () => {
    const { id: volume } = await json('volumes', 'create', 'data', '--size', '1')
    await until(async () => (await json('volumes', 'show', volume)).state === 'created')
    const { id } = await json('machine', 'run', image, '--volume', 'data:/data')
    await inside(id, 'sh', '-c', 'echo kept > /data/file')
    expect(await said('volumes', 'list')).toMatch(new RegExp(`^${volume} +data +created +1 GB +local +${id} `, 'm'))
    expect(await said('volumes', 'extend', volume, '--size', '2')).toContain('has 2 GB')
    await until(async () => (await json('volumes', 'show', volume)).state === 'created')
    await said('volumes', 'snapshots', 'create', volume)
    await until(async () => (await json('volumes', 'snapshots', 'list', volume))[0]?.status === 'created')
    expect((await run('volumes', 'destroy', volume, '--yes')).code).toBe(1)
    const fork = await json('volumes', 'fork', volume, '--name', 'copy')
    await until(async () => (await json('volumes', 'show', fork.id)).state === 'created')
    expect(await said('volumes', 'show', fork.id)).toMatch(/^name +copy$/m)
    const { id: reader } = await json('machine', 'run', image, '--volume', `${fork.id}:/data`)
    expect(await inside(reader, 'cat', '/data/file')).toBe('kept\n')
    await machine('destroy', reader, '--force', '--yes')
    await said('volumes', 'destroy', fork.id, '--yes')
    await machine('destroy', id, '--force', '--yes')
    const { id: other } = await json('machine', 'run', image, '--volume', `${volume}:/data`)
    expect(await inside(other, 'cat', '/data/file')).toBe('kept\n')
    await machine('destroy', other, '--force', '--yes')
    expect(await said('volumes', 'destroy', volume, '--yes')).toContain(`Volume ${volume} is`)
  }, 120_000)

  test('secrets are deployed to machines at once, or staged until the next deployment', async () => {
    const { id } = await json('machine', 'run', image)
    const value = () => inside(id, 'sh', '-c', 'echo "$WORD/$FILE"')
    const set = await run('secrets', 'set', 'WORD=open')
    expect(set.out).toBe('Changed 1 secret of app shop and updated 1 machine.\n')
    expect(await value()).toBe('open/\n')
    const staged = await feed('from input\n', 'secrets', 'set', 'FILE=-', '--stage')
    expect(staged.out).toBe('Changed 1 secret of app shop.\n')
    expect(await value()).toBe('open/\n')
    expect(await said('secrets', 'deploy')).toBe('Updated 1 machine.\n')
    expect(await value()).toBe('open/from input\n')
    expect(await said('secrets', 'list')).toMatch(/^FILE +[0-9a-f]{16} .*\nWORD +[0-9a-f]{16} /m)
    await said('secrets', 'unset', 'WORD', 'FILE', '--stage')
    await feed('A="b c"\n# no\n', 'secrets', 'import', '--stage')
    expect((await json('secrets', 'list')).secrets.map(({ name }: { name: string }) => name)).toEqual(['A'])
    await machine('destroy', id, '--force', '--yes')
  }, 120_000)

  test('addresses and host names can be added and removed', async () => {
    expect(await said('ips', 'allocate-v4', '--shared')).toMatch(/^App shop has the address [\d.]+\.$/m)
    const { ip } = await json('ips', 'allocate-v6', '--private')
    expect(await said('ips', 'list')).toMatch(/^[\d.]+ +shared_v4 +\S+ .*^fd[0-9a-f:]+ +private_v6 /ms)
    await said('ips', 'release', ip)
    expect((await json('ips', 'list')).ips).toHaveLength(1)
    expect(await said('certs', 'add', 'shop.test')).toBe('Requests for shop.test now go to app shop.\n')
    expect(await said('certs', 'list')).toMatch(/^shop\.test +\w+$/m)
    expect(await said('certs', 'show', 'shop.test')).toMatch(/^hostname +shop\.test$/m)
    expect(await said('certs', 'remove', 'shop.test')).toContain('no longer')
    expect((await run('certs', 'show', 'shop.test')).code).toBe(1)
  }, 120_000)
})
