// Other users of the host, among them those of other tenants' boxes and clusters, try every file of a home.
import { execFileSync } from 'node:child_process'
import { chmodSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { readyCluster } from '../support/client.ts'
import { Tenant } from '../support/tenant/platform.ts'
import { until } from '../support/until.ts'

const tenant = new Tenant()
const { berth } = tenant
const program = new URL('../support/tenant/access.pl', import.meta.url).pathname
let machine: string
let user: number

/** Programs, and the addresses of the platform. */
const shared = /^\/(toolchain(\/.*)?|ca\/ca\.crt|run\/addresses\.json)$/
/** Where every client of the host connects to, with a password or a token. */
const sockets = /^\/run\/[^/]+\/\.s\.PGSQL\.\d+$/

/** Makes a setuid program in a box, and a file that anyone in it may read and write. */
const plant =
  'cp /bin/busybox /usr/bin/perl /tmp/ 2>/dev/null; cd /tmp; echo secret > open; chmod 0666 open; chmod 4755 perl'

describe.runIf(process.getuid?.() === 0)('another user of the host', () => {
  beforeAll(async () => {
    await tenant.open()
    await Promise.all([readyCluster(berth), makeSandbox('one'), makeSandbox('other'), makeMachine()])
  }, 180_000)

  afterAll(() => tenant.close())

  async function makeSandbox(name: string): Promise<void> {
    await tenant.createSandbox(name)
    await tenant.inSandbox(name, ['sh', '-c', plant])
    const service = { cmd: 'sh', args: ['-c', 'echo out; echo err >&2; sleep 1000'] }
    await tenant.onSandbox('PUT', `/${name}/services/web?duration=50ms`, service)
    expect((await tenant.onSandbox('POST', `/${name}/checkpoint`, {})).text).toContain('complete')
  }

  async function makeMachine(): Promise<void> {
    const volume = await berth.ok('POST', tenant.volumes, { name: 'data', size_gb: 1 })
    machine = await tenant.startMachine({ mounts: [{ volume: volume.id, path: '/data' }], init: { user: 'web' } })
    await tenant.inMachine(machine, ['sh', '-c', plant])
    await berth.ok('POST', `${tenant.volumes}/${volume.id}/snapshots`)
    await until(async () => (await berth.ok('GET', `${tenant.volumes}/${volume.id}/snapshots`))[0].status === 'created')
  }

  /** The paths of the home that this user can use, each with a letter that says how. */
  function accessOf(uid: number): string[] {
    const paths = execFileSync('find', [berth.home], { maxBuffer: 2 ** 28 })
    const identity = ['--reuid', String(uid), '--regid', String(uid), '--clear-groups']
    const output = execFileSync('setpriv', [...identity, 'perl', program], {
      input: paths,
      maxBuffer: 2 ** 28,
      cwd: '/',
    })
    const lines = output.toString().trimEnd().split('\n')
    const entries = lines.map((line) => ({ way: line[0]!, path: line.slice(2 + berth.home.length) }))
    return entries
      .filter(({ path, way }) => !(shared.test(path) && way !== 'w') && !(way === 'c' && sockets.test(path)))
      .map(({ way, path }) => `${way} ${path}`)
  }

  const uidOf = (path: string) => statSync(`${berth.home}/${path}`).uid
  const [boxes, machines] = [() => readdirSync(`${berth.home}/sandbox`), () => readdirSync(`${berth.home}/machine`)]

  test('cannot read, write, list, execute or connect to anything', () => {
    expect(accessOf(4_000_000_000)).toEqual([])
    expect(accessOf(65_534)).toEqual([])
  })

  test('cannot do so as a user of a box, which reaches its own files only', () => {
    const [one, other] = boxes().filter((id) => !id.startsWith('probe'))
    user = uidOf(`sandbox/${one}/upper`)
    expect(user).not.toBe(uidOf(`sandbox/${other}/upper`))
    const reached = accessOf(user)
    expect(reached.filter((line) => !line.includes(`/sandbox/${one}/`))).toEqual([])
    expect(accessOf(user + 1000)).toEqual([])
  })

  test('cannot do so as the user of a machine', () => {
    const [id] = machines()
    expect(id).toBe(machine)
    const owner = uidOf(`machine/${id}/layer/upper`)
    expect(accessOf(owner)).toEqual([])
    expect(accessOf(owner + 1000)).toEqual([])
    expect(statSync(`${berth.home}/machine/${id}/stderr`).mode & 0o777).toBe(0o600)
  })

  test('cannot do so as the user of a cluster, which reaches its own files only', () => {
    const [id] = readdirSync(`${berth.home}/clusters`)
    const reached = accessOf(uidOf(`clusters/${id}/data`)).filter((line) => !line.includes(id!))
    expect(reached).toEqual([])
  })

  test('cannot do so in a home that an earlier version left open, once the platform starts again', async () => {
    const directories = [
      'sandbox',
      ...boxes().map((id) => `sandbox/${id}`),
      'machine',
      'volume',
      'snapshot',
      'image',
      'trash',
      'sandbox-base',
    ]
    for (const name of directories) chmodSync(`${berth.home}/${name}`, 0o755)
    expect(accessOf(4_000_000_000).length).toBeGreaterThan(100)
    process.kill(Number(/"pid":(\d+),"api":/.exec(berth.output)![1]), 'SIGTERM')
    await until(() => berth.children.every((child) => child.exitCode !== null || child.signalCode !== null))
    await berth.up()
    expect(accessOf(4_000_000_000)).toEqual([])
    expect(await tenant.inSandbox('one', ['cat', '/tmp/open'])).toBe('secret\n')
    expect(readFileSync(`${berth.home}/token`, 'utf8')).not.toBe('')
  })
})
