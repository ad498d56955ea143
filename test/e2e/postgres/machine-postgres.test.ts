// Machines can use the clusters of their own organization only.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy, readyCluster } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

interface Machine {
  app: string
  id: string
}

const run = promisify(execFile)
const berth = new Berth()
let registry: Registry
let image: string
let authority: string
let cluster: string
let machines: Record<'web' | 'apart' | 'lone' | 'foreign', Machine>

describe.runIf(process.getuid?.() === 0)('machines and clusters', () => {
  beforeAll(async () => {
    registry = await startRegistry()
    const spec = busyboxImage({ Cmd: ['sleep', '100000'] })
    image = (await pushImage(registry, { repository: 'idle', ...spec })).reference
    await berth.up()
    await berth.call('POST', '/v1/orgs', { slug: 'abroad' })
    const made = await Promise.all([
      readyCluster(berth, { name: 'shop' }),
      start('web'),
      start('apart', { network: 'island' }),
      start('lone', { network: 'rock' }),
      start('foreign', { org_slug: 'abroad' }),
    ])
    cluster = made[0]
    machines = { web: made[1], apart: made[2], lone: made[3], foreign: made[4] }
    authority = (await berth.cli('postgres', 'ca')).stdout
  }, 180_000)

  afterAll(async () => {
    await registry?.close()
    await destroy(berth)
  })

  test('an attached app connects with its secret and verifies the server', async () => {
    const url = await attach('web')
    expect(url.host).toBe(`${cluster}.pg.internal:5432`)
    expect(await ask(machines.web, url)).toBe('fly-user fly-db')
    const shown = (await berth.cli('postgres', 'show', 'shop')).stdout
    expect(shown).toContain(`@${cluster}.pg.internal:5432/`)
    expect(shown).toContain(`@direct.${cluster}.pg.internal:5432/`)
  })

  test('the server is reachable directly too', async () => {
    const url = await secretOf('web')
    url.hostname = `direct.${cluster}.pg.internal`
    expect(await ask(machines.web, url)).toBe('fly-user fly-db')
    expect(await lookUp(machines.web, url.hostname)).not.toBe(await lookUp(machines.web, `${cluster}.pg.internal`))
  })

  test('other organizations can neither resolve the name nor connect', async () => {
    const url = await secretOf('web')
    const known = (await lookUp(machines.web, url.hostname))!
    await lets(known, url)
    const atHost = new URL(`postgresql://u:p@x:${await portOf('pooler')}/d`)
    for (const stranger of [machines.lone, machines.foreign]) {
      expect(await lookUp(stranger, url.hostname)).toBeUndefined()
      const gateway = await gatewayOf(stranger)
      const answers = await Promise.all([
        tryAsk(stranger, url, known),
        // The address that it would have in their network does not work either.
        tryAsk(stranger, url, inNetworkOf(known, await addressOf(stranger))),
        tryAsk(stranger, atHost, '127.0.0.1'),
        tryAsk(stranger, atHost, gateway),
      ])
      expect(answers).toEqual(['', '', '', ''])
    }
    expect(await tryAsk(undefined, url, known)).toBe('')
  })

  test('a sandbox can neither resolve the name nor connect', async () => {
    const url = await secretOf('web')
    const known = (await lookUp(machines.web, url.hostname))!
    await berth.cli('sandbox', 'create', 'box')
    const inside = (...command: string[]) =>
      berth.cli('sandbox', 'exec', 'box', '--', ...command).catch((error: { stdout: string }) => error)
    expect((await inside('getent', 'hosts', url.hostname)).stdout).toBe('')
    const knock =
      'use IO::Socket::IP; print IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => 5432, Timeout => 1) ? 1 : 0'
    expect((await inside('perl', '-e', knock, known)).stdout).toBe('0')
  })

  test('a segmented network resolves it while an app in it is attached', async () => {
    expect(await lookUp(machines.apart, `${cluster}.pg.internal`)).toBeUndefined()
    const url = await attach('apart')
    expect(await ask(machines.apart, url)).toBe('fly-user fly-db')
    const known = (await lookUp(machines.apart, url.hostname))!
    const held = spawn(...commandOf(machines.apart, url, known, { hold: 'yes' }), {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    const ended = once(held, 'exit')
    try {
      expect(String(await once(held.stdout, 'data'))).toBe('fly-user fly-db\n')
      await berth.cli('postgres', 'detach', 'shop', 'apart')
      await ended
    } finally {
      held.kill('SIGKILL')
    }
    await until(async () => (await lookUp(machines.apart, url.hostname)) === undefined)
    await until(async () => (await tryAsk(machines.apart, url, known)) === '')
    await until(async () => !(await run('ip', ['-6', 'addr', 'show', 'dev', 'lo'])).stdout.includes(`${known}/`))
  })

  test('works without the control plane', async () => {
    const url = await secretOf('web')
    const known = (await lookUp(machines.web, url.hostname))!
    await Promise.all(berth.children.map((child) => end(child)))
    const inside = ['-t', hostPid(machines.web)!, '-n', '-m', '/bin/busybox', 'nslookup', '-type=AAAA', url.hostname]
    expect((await run('nsenter', inside)).stdout).toContain(known)
    expect(await askAt(machines.web, url, known)).toBe('fly-user fly-db')
    // The process that forwards the connections restarts by itself.
    const { stdout: edge } = await run('s6-svstat', ['-o', 'pid', `${berth.home}/tree/edge`])
    process.kill(Number(edge), 'SIGKILL')
    await until(async () => (await askAt(machines.web, url, known)) === 'fly-user fly-db', 60)
    await berth.up()
  })

  test('the name disappears with the cluster', async () => {
    const url = await secretOf('web')
    const known = (await lookUp(machines.web, url.hostname))!
    await berth.cli('postgres', 'destroy', 'shop', '--yes')
    await until(async () => (await lookUp(machines.web, url.hostname)) === undefined)
    await until(async () => (await tryAsk(machines.web, url, known)) === '')
  })
})

async function start(app: string, given: object = {}): Promise<Machine> {
  await berth.call('POST', '/v1/apps', { app_name: app, org_slug: 'personal', ...given })
  const config = { image, guest: { cpus: 1, memory_mb: 256 } }
  const { body } = await berth.call('POST', `/v1/apps/${app}/machines`, { config })
  const machine = { app, id: body.id }
  await until(async () => {
    const { body: shown } = await berth.call('GET', `/v1/apps/${app}/machines/${machine.id}`)
    if (/failed|destroy/.test(shown.state)) throw new Error(JSON.stringify(shown))
    return shown.state === 'started' && hostPid(machine) !== undefined
  }, 60)
  return machine
}

async function attach(app: string): Promise<URL> {
  await berth.cli('postgres', 'attach', 'shop', app)
  return secretOf(app)
}

async function secretOf(app: string): Promise<URL> {
  const { body } = await berth.call('GET', `/v1/apps/${app}/secrets?show_secrets=true`)
  return new URL(body.secrets[0].value)
}

async function portOf(way: 'pooler' | 'direct'): Promise<number> {
  return (await berth.call('GET', `/v1/postgres/${cluster}`)).body.data.endpoints.primary[way].port
}

async function addressOf({ app, id }: Machine): Promise<string> {
  return (await berth.call('GET', `/v1/apps/${app}/machines/${id}`)).body.private_ip
}

/** The network id is in the first three groups of the address, which are never abbreviated for machines. */
function inNetworkOf(address: string, other: string): string {
  return [...other.split(':').slice(0, 3), ...address.split(':').slice(3)].join(':')
}

async function exec({ app, id }: Machine, ...command: string[]): Promise<string> {
  const { body } = await berth.call('POST', `/v1/apps/${app}/machines/${id}/exec`, { command, timeout: 30 })
  return `${body.stdout}${body.stderr}`
}

async function gatewayOf(machine: Machine): Promise<string> {
  return /default via (\S+)/.exec(await exec(machine, 'ip', 'route'))![1]!
}

/** Resolves a name inside the machine. */
async function lookUp(machine: Machine, name: string): Promise<string | undefined> {
  const out = await exec(machine, 'nslookup', '-type=AAAA', name)
  return /(fdaa:[0-9a-f:]+)/.exec(out.slice(out.indexOf('\n\n')))?.[1]
}

async function ask(machine: Machine, url: URL): Promise<string> {
  await until(async () => (await lookUp(machine, url.hostname)) !== undefined)
  const address = (await lookUp(machine, url.hostname))!
  await lets(address, url, machine)
  return askAt(machine, url, address)
}

/** Waits, because the edge listens a moment after the name resolves. */
async function lets(address: string, url: URL, machine = machines.web): Promise<void> {
  await until(async () => (await askAt(machine, url, address)) !== '')
}

const client = `
  const pg = (await import(process.argv[1])).default
  const [, , text, host, ca, seconds, hold] = process.argv
  const url = new URL(text)
  const client = new pg.Client({
    host, port: Number(url.port), user: decodeURIComponent(url.username), password: decodeURIComponent(url.password),
    database: url.pathname.slice(1), ssl: { ca, servername: url.hostname }, connectionTimeoutMillis: seconds * 1000,
  })
  client.on('error', () => {})
  try {
    await client.connect()
    const { rows } = await client.query('select session_user || $$ $$ || current_database() as text')
    console.log(rows[0].text)
    if (hold) await new Promise((resolve) => client.once('end', resolve))
  } catch (error) {
    console.error(error)
  }
  process.exit()
`

interface Manner {
  /** The timeout of the connection. */
  seconds?: number
  hold?: string
}

/** Runs a program of the host in the network of a machine or of the host. */
async function askAt(machine: Machine | undefined, url: URL, address: string, manner?: Manner): Promise<string> {
  const { stdout } = await run(...commandOf(machine, url, address, manner))
  return stdout.trim()
}

/** Uses a short timeout, because the connection is expected to fail. */
function tryAsk(machine: Machine | undefined, url: URL, address: string): Promise<string> {
  return askAt(machine, url, address, { seconds: 1.5 })
}

function commandOf(
  machine: Machine | undefined,
  url: URL,
  address: string,
  { seconds = 20, hold = '' }: Manner = {},
): [string, string[]] {
  const words = [import.meta.resolve('pg'), url.href, address, authority, String(seconds), hold]
  const pid = machine ? hostPid(machine)! : String(process.pid)
  return ['nsenter', ['-t', pid, '-n', process.execPath, '--input-type=module', '-e', client, ...words]]
}

/** Finds the pid of the machine's program by its environment. */
function hostPid({ id }: Machine): string | undefined {
  const found = globSync('/proc/[0-9]*/environ').find((file) => {
    try {
      const isProgram = readFileSync(file.replace('environ', 'comm'), 'utf8') === 'sleep\n'
      return isProgram && readFileSync(file, 'utf8').includes(`FLY_MACHINE_ID=${id}\0`)
    } catch {
      return false // it has ended
    }
  })
  return found?.split('/')[2]
}
