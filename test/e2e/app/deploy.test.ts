// Deployments from a configuration file and an image.
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { type Result, runCli } from '../../support/cli.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
const directory = mkdtempSync(join(tmpdir(), 'berth-deploy-'))
let registry: Registry
let image: string
const serve = 'echo "serving $VERSION"; echo "$VERSION" > /www/index.html; exec httpd -f -p 8080 -h /www'

beforeAll(async () => {
  registry = await startRegistry()
  const spec = busyboxImage({ Cmd: ['sh', '-c', serve] })
  image = (await pushImage(registry, { repository: 'web', ...spec })).reference
  await berth.up()
}, 120_000)

afterAll(async () => {
  rmSync(directory, { recursive: true })
  await registry?.close()
  await destroy(berth)
})

const run = (...args: string[]): Promise<Result> => runCli(berth, args, { cwd: directory })

async function said(...args: string[]): Promise<string> {
  const { code, out, err } = await run(...args)
  if (code !== 0) throw new Error(`${args.join(' ')} ended with ${code}: ${err}`)
  return out
}

const json = async (...args: string[]) => JSON.parse(await said('--json', ...args))

interface Machine {
  id: string
  state: string
  instance_id: string
  config: { env?: Record<string, string>; metadata: Record<string, string>; mounts?: { volume: string }[] }
}

const machines = (): Promise<Machine[]> => json('machine', 'list')

interface Wish {
  version: string
  app?: string
  path?: string
  deploy?: string
  more?: string
}

function write({ version, app = 'shop', path = '/', deploy = '', more = '' }: Wish): void {
  writeFileSync(
    `${directory}/berth.toml`,
    `app = "${app}"
image = "${image}"
kill_timeout = 10
[env]
  VERSION = "${version}"
[deploy]
  wait_timeout = "1m"
  ${deploy}
[http_service]
  internal_port = 8080
  [[http_service.checks]]
    path = "${path}"
    interval = "1s"
    grace_period = "1s"
${more}`,
  )
}

async function ask(app: string, agent: Agent | false = false): Promise<{ status: number; body: string }> {
  const { hostname, port } = new URL(berth.addresses.edge)
  const call = request({ host: hostname, port, agent, headers: { host: `${app}.berth.localhost` } }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  let body = ''
  for await (const chunk of reply) body += chunk
  return { status: reply.statusCode!, body }
}

/** Sends requests over kept and new connections until it is stopped. */
function startTraffic(app: string) {
  const agent = new Agent({ keepAlive: true, maxSockets: 2 })
  const failures: string[] = []
  const bodies = new Set<string>()
  let stopping = false
  const turn = async (each: Agent | false) => {
    while (!stopping) {
      const reply = await ask(app, each).catch((error) => ({ status: 0, body: String(error) }))
      if (reply.status === 200) bodies.add(reply.body.trim())
      else failures.push(`${reply.status} ${reply.body}`)
      await new Promise((resolve) => setTimeout(resolve, 5)) // limits the load; no result depends on it
    }
  }
  const turns = [turn(agent), turn(false)]
  return async () => {
    stopping = true
    await Promise.all(turns)
    agent.destroy()
    return { failures, bodies: [...bodies].sort() }
  }
}

test('the first deployment creates the app, its machines and its address', async () => {
  write({ version: 'one', more: 'console_command = "sh"' })
  const { out, err } = await run('deploy')
  expect(err).not.toContain('error')
  expect(err).toMatch(/^warning: these settings have no effect: http_service\.checks\.console_command$/m)
  expect(err).toMatch(/^Created app shop in organization personal\.$/m)
  expect(err).toMatch(/^App shop has the shared address 127\./m)
  expect(err).toMatch(/^Starting machine \w+ \(2 of 2\) \(\d+ s\)$/m)
  expect(out).toMatch(/^Deployed release 1 of app shop: created 2 machines\.\nURL: http:\/\/shop\.berth\.localhost/)
  expect((await ask('shop')).body).toBe('one\n')
  const [first] = await machines()
  expect(first!.config.metadata).toEqual({
    fly_platform_version: 'v2',
    fly_process_group: 'app',
    fly_release_id: expect.any(String),
    fly_release_version: '1',
  })
}, 120_000)

test('the next one updates one machine after the other without a failed request', async () => {
  const before = await machines()
  write({ version: 'two', deploy: `release_command = "sh -c 'echo migrating; test -n \\"$RELEASE_COMMAND\\"'"` })
  const stop = startTraffic('shop')
  const { out, err } = await run('deploy')
  const { failures, bodies } = await stop()
  expect(failures).toEqual([])
  expect(err).not.toContain('error')
  expect(bodies).toEqual(['one', 'two'])
  expect(err).toMatch(/^Running the release command in machine \w+ .*^Updating machine \w+ \(1 of 2\) .*\(2 of 2\)/ms)
  expect(out).toMatch(/^Deployed release 2 of app shop: updated 2 machines\.$/m)
  expect((await machines()).map(({ id }) => id)).toEqual(before.map(({ id }) => id))
}, 120_000)

test('an unhealthy machine stops the deployment with a reason', async () => {
  write({ version: 'broken', path: '/missing' })
  const { code, out, err } = await run('deploy', '--wait-timeout', '15')
  expect({ code, out }).toEqual({ code: 1, out: '' })
  expect(err).toMatch(/^error: machine \w+: servicecheck-00-http-8080 did not pass within 15 s: .*404/m)
  expect(err).toMatch(/^Last log lines of machine \w+:\n {2}.*serving broken$/ms)
  expect((await machines()).map(({ config }) => config.env!.VERSION).sort()).toEqual(['broken', 'two'])
  expect((await ask('shop')).body).toBe('two\n')
  write({ version: 'three', deploy: `release_command = "sh -c 'echo no such table >&2; exit 1'"` })
  const refused = await run('deploy')
  expect([refused.code, refused.err]).toEqual([
    1,
    expect.stringContaining('error: the release command exited with code 1'),
  ])
  expect(refused.err).toMatch(/^Last log lines of machine \w+:\n {2}.*no such table$/ms)
  write({ version: 'three' })
  await said('deploy')
  expect((await machines()).map(({ config }) => config.env!.VERSION)).toEqual(['three', 'three'])
}, 120_000)

test('scaling and new secrets cause no failed request', async () => {
  expect(await said('scale', 'count', '3')).toBe('App shop has 3 machines.\n')
  expect(await said('scale', 'show')).toMatch(/^app +3 +shared +1 +256 MB +local$/m)
  expect((await run('scale', 'count', '1')).err).toContain('use --yes')
  expect(await json('scale', 'count', '2', '--yes')).toMatchObject({
    counts: { app: 2 },
    destroyed: [expect.any(String)],
  })
  const stop = startTraffic('shop')
  expect(await said('secrets', 'set', 'WORD=open')).toContain('updated 2 machines')
  expect((await stop()).failures).toEqual([])
  for (const { id } of await machines()) {
    expect(await said('machine', 'exec', id, '--', 'sh', '-c', 'echo $WORD')).toBe('open\n')
  }
}, 120_000)

test('a canary that fails leaves the other machines as they are', async () => {
  write({ version: 'bad', path: '/missing', deploy: 'strategy = "canary"\n  max_unavailable = 2' })
  const failed = await run('deploy', '--wait-timeout', '10')
  expect([failed.code, failed.err]).toEqual([1, expect.stringContaining('did not pass within 10 s')])
  const lines = failed.err.slice(failed.err.indexOf('Last log lines of machine'))
  expect(lines).toContain('serving bad')
  expect(lines).not.toContain('serving three')
  expect((await machines()).map(({ config }) => config.env!.VERSION).sort()).toEqual(['bad', 'three'])
  write({ version: 'four', deploy: 'strategy = "canary"\n  max_unavailable = 2' })
  expect(await json('deploy')).toMatchObject({ created: [], updated: [expect.any(String), expect.any(String)] })
  expect((await machines()).map(({ config }) => config.env!.VERSION)).toEqual(['four', 'four'])
}, 120_000)

test('bluegreen replaces machines by new ones without a failed request, or not at all', async () => {
  const before = (await machines()).map(({ id }) => id)
  write({ version: 'bad', path: '/missing', deploy: 'strategy = "bluegreen"' })
  const failed = await run('deploy', '--wait-timeout', '10')
  expect([failed.code, failed.err]).toEqual([1, expect.stringContaining('did not pass within 10 s')])
  expect((await machines()).map(({ id }) => id)).toEqual(before)
  write({ version: 'five', deploy: 'strategy = "bluegreen"' })
  // Left by a deployment that was interrupted.
  await said('machine', 'clone', before[0]!, '--name', 'left')
  const left = (await machines()).at(-1)!
  await said('machine', 'update', left.id, '--metadata', 'berth_bluegreen=new')
  const stop = startTraffic('shop')
  const { created, updated, destroyed } = await json('deploy')
  const { failures, bodies } = await stop()
  expect(failures).toEqual([])
  expect(bodies).toEqual(['five', 'four'])
  expect([updated, destroyed]).toEqual([[], before])
  const after = await machines()
  expect(after.map(({ id }) => id)).toEqual(created)
  expect(after[0]!.config.metadata).not.toHaveProperty('berth_bluegreen')
}, 180_000)

test('releases are listed, and machines go back to the configuration of an earlier one', async () => {
  const [newest, ...older] = await json('releases', 'list')
  expect(newest).toMatchObject({ status: 'complete', deploymentStrategy: 'BLUEGREEN', imageRef: image })
  expect(older[0]).toMatchObject({ status: 'failed', version: newest.version - 1 })
  expect(await said('releases', 'list')).toMatch(new RegExp(`^${newest.version} +complete +\\S+ +bluegreen +root`, 'm'))
  const ids = (await machines()).map(({ id }) => id)
  expect(await said('releases', 'show', `${newest.version}`)).toMatch(new RegExp(`^machines +${ids.join(', ')}$`, 'm'))
  write({ version: 'six', deploy: 'strategy = "immediate"' })
  await said('deploy')
  const back = await json('releases', 'rollback')
  expect(back).toMatchObject({ app: 'shop', restored: newest.version, release: newest.version + 2, updated: ids })
  expect((await machines()).map(({ config }) => config.env!.VERSION)).toEqual(['five', 'five'])
  expect((await json('releases', 'show', `${back.release}`)).machines).toEqual(ids)
  const refused = await run('releases', 'rollback', `${newest.version - 1}`)
  expect([refused.code, refused.err]).toEqual([1, expect.stringContaining('is failed; choose a complete one')])
}, 120_000)

test('all started machines of an app can be restarted without a failed request', async () => {
  const stop = startTraffic('shop')
  expect(await said('apps', 'restart', 'shop')).toBe('Restarted 2 machines of app shop.\n')
  expect((await stop()).failures).toEqual([])
}, 120_000)

test('an app that serves plain TCP gets an own address, which is shown', async () => {
  writeFileSync(
    `${directory}/berth.toml`,
    `app = "echo"
image = "${image}"
[env]
  VERSION = "x"
[[services]]
  internal_port = 8080
  [[services.ports]]
    port = 7777`,
  )
  const { out, err } = await run('deploy', '--ha', 'false')
  const [, ip = ''] = /^App echo has the address (127\.[\d.]+)\.$/m.exec(err) ?? []
  expect(out).toBe(`Deployed release 1 of app echo: created 1 machine.\nAddress: tcp://${ip}:7777\n`)
  expect(await said('apps', 'show', 'echo')).toMatch(new RegExp(`^address +tcp://${ip}:7777$`, 'm'))
  await until(async () => (await fetch(`http://${ip}:7777/`).catch(() => undefined))?.status === 200)
  await said('ips', 'release', ip)
  await said('ips', 'allocate-v4', '--shared')
  const again = await run('deploy')
  expect(again.err).toContain('need an own address, which app echo does not have; run "berth ips allocate-v4 -a echo"')
  expect(again.out).toBe('Deployed release 2 of app echo: updated 1 machine.\n')
  expect(await said('apps', 'show', 'echo')).toMatch(
    /^address +plain TCP and UDP ports need an own address; "berth ips/m,
  )
  rmSync(`${directory}/berth.toml`)
}, 120_000)

test('process groups have their own commands and keep their volumes', async () => {
  const more = `
[processes]
  web = "sh -c 'echo $VERSION > /www/index.html; exec httpd -f -p 8080 -h /www'"
  keeper = ["sh", "-c", "echo $VERSION >> /data/seen; exec sleep 1000"]
[[mounts]]
  source = "data"
  destination = "/data"
  initial_size = "1gb"
  processes = ["keeper"]`
  const file = (version: string) => {
    write({ version, app: 'store' })
    const text = `
app = "store"
image = "${image}"
kill_signal = "SIGTERM"
[env]
  VERSION = "${version}"
[http_service]
  internal_port = 8080
  processes = ["web"]
${more}`
    writeFileSync(`${directory}/berth.toml`, text)
  }
  file('one')
  expect(await json('deploy', '--ha', 'false')).toMatchObject({ created: [expect.any(String), expect.any(String)] })
  file('two')
  const { updated } = await json('deploy', '--strategy', 'immediate')
  expect(updated).toHaveLength(2)
  const keeper = (await machines()).find(({ config }) => config.metadata.fly_process_group === 'keeper')!
  expect(await said('machine', 'exec', keeper.id, '--', 'cat', '/data/seen')).toBe('one\ntwo\n')
  expect(keeper.config.mounts![0]!.volume).toMatch(/^vol_/)
  await until(async () => (await ask('store')).body === 'two\n')
  // Without a file only the image of the machines changes.
  rmSync(`${directory}/berth.toml`)
  expect(await said('deploy', '-a', 'store', '--image', image)).toContain('updated 2 machines')
  expect(await said('machine', 'exec', keeper.id, '-a', 'store', '--', 'cat', '/data/seen')).toBe('one\ntwo\ntwo\n')
}, 120_000)

test('a program that exits at once is not deployed as a success', async () => {
  write({ app: 'crash', version: 'x', more: `[processes]\n  app = "sh -c 'echo no settings >&2; exit 1'"` })
  const { code, err } = await run('deploy', '--ha', 'false', '--wait-timeout', '15')
  rmSync(`${directory}/berth.toml`)
  expect([code, err]).toEqual([1, expect.stringMatching(/did not pass within 15 s: its program was restarted/)])
  expect(err).toMatch(/last exited with code 1.*no settings$/ms)
  expect(await said('machine', 'list', '-a', 'crash')).toMatch(/ started.*restarts? +0 of 1 pass/)
}, 120_000)

test('a port that nothing listens on is reported', async () => {
  const options = ['-a', 'wrong', '--image', image, '--ha', 'false', '-e', 'VERSION=x']
  const shown = await run('deploy', ...options, '--internal-port', '9999')
  expect([shown.code, shown.err]).toEqual([
    0,
    expect.stringMatching(/^warning: nothing listens on tcp port 9999, the internal_port of a service/m),
  ])
  expect(await said('logs', '-a', 'wrong')).toContain('(platform) warning: nothing listens on tcp port 9999')
  const [{ id }] = await json('machine', 'list', '-a', 'wrong')
  expect(await said('machine', 'status', id, '-a', 'wrong')).toMatch(/^warning +nothing listens on tcp port 9999/m)
  expect((await json('deploy', ...options)).warnings).toEqual([expect.stringContaining('9999')])
}, 120_000)

test('an image is enough without a file', async () => {
  const plain = await run(
    'deploy',
    '-a',
    'plain',
    '--image',
    image,
    '--internal-port',
    '8080',
    '--ha',
    'false',
    '-e',
    'VERSION=x',
  )
  expect([plain.code, plain.out]).toEqual([0, expect.stringContaining('created 1 machine.')])
  await until(async () => (await ask('plain')).body === 'x\n')
  const none = await run('deploy', '-a', 'empty')
  expect([none.code, none.err]).toEqual([2, expect.stringContaining('name the image with --image')])
  expect((await run('apps', 'show', 'empty')).code).toBe(1)
  const failing = await run('deploy', '-a', 'failing', '--image', `${registry.host}/absent`)
  expect([failing.code, failing.err]).toEqual([1, expect.stringContaining('is destroyed, not started')])
}, 120_000)
