import { execFile, spawnSync } from 'node:child_process'
import { generateKeyPairSync, type KeyObject, sign } from 'node:crypto'
import { chmodSync, chownSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, afterEach, beforeEach, describe, expect, inject, test } from 'vitest'
import { openHome } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { readConfig } from '../../../src/main/config.ts'
import { doctor } from '../../../src/main/doctor/doctor.ts'
import { delegateCommands } from '../../../src/main/doctor/host.ts'
import { makeInstallation } from '../../support/fake/installation.ts'
import { canRunAs, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const source = new URL('../../../src/main/', import.meta.url).pathname
const directories: string[] = []
const servers: Server[] = []
let home: string

beforeEach(() => {
  home = temporaryDirectory()
  directories.push(home)
})

afterEach(() => {
  for (const server of servers.splice(0)) server.close()
})

afterAll(() => {
  for (const directory of directories) rmSync(directory, { recursive: true, force: true })
})

function settings(changes: Record<string, string> = {}): Record<string, string> {
  return {
    BERTH_HOME: home,
    BERTH_API_LISTEN: '127.0.0.1:0',
    BERTH_SANDBOX_LISTEN: '127.0.0.1:0',
    BERTH_EDGE_LISTEN: '127.0.0.1:0',
    ...changes,
  }
}

async function check(name: string, changes: Record<string, string> = {}) {
  const { checks } = await doctor(readConfig(settings(changes)))
  const found = checks.find((one) => one.name === name)
  if (!found) throw new Error(`no check is called ${name}`)
  return found
}

async function listen(): Promise<number> {
  const server = createServer()
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return (server.address() as { port: number }).port
}

test('damaged data directories that recoveries have kept are counted', async () => {
  expect(await check('damaged data')).toMatchObject({ level: 'ok' })
  mkdirSync(`${home}/clusters/0123456789abcdef/damaged-20261118-120000`, { recursive: true })
  expect(await check('damaged data')).toMatchObject({
    level: 'warning',
    found: '1 damaged data directory of 0123456789abcdef',
    fix: './berth postgres recover 0123456789abcdef --discard',
  })
})

test.runIf(isRoot())('the disk of the repository is checked by itself', async () => {
  const repository = join(home, 'repository')
  mkdirSync(repository)
  spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=10m', 'tmpfs', repository])
  try {
    expect(await check('repository disk space', { BERTH_REPOSITORY: repository })).toMatchObject({
      level: 'problem',
      cost: 'Archiving and backups stop when the disk is full, and it is nearly full.',
    })
  } finally {
    spawnSync('umount', [repository])
  }
})

describe('the report', () => {
  test('changes nothing, and names the consequence and the fix of each finding', async () => {
    const { checks } = await doctor(readConfig(settings()))
    expect(readdirSync(home)).toEqual([])
    expect(new Set(checks.map(({ name }) => name)).size).toBe(checks.length)
    for (const { level, ok, found, cost, fix } of checks) {
      expect(found).not.toBe('')
      expect(ok).toBe(level === 'ok')
      if (level !== 'ok') expect([cost, fix]).not.toContain(undefined)
    }
  })

  test('shows what would be used before there is a home, and creates none', async () => {
    const missing = join(home, 'not/yet')
    const { checks } = await doctor(readConfig(settings({ BERTH_HOME: missing })))
    const found = Object.fromEntries(checks.map((one) => [one.name, one.found]))
    expect(found['PostgreSQL 17']).toMatch(/^17\.\d+ from /)
    expect(found['PostgreSQL 16']).toMatch(/^16\.\d+ from /)
    expect(found.home).toBe(`${missing}, created at first start`)
    expect(existsSync(join(home, 'not'))).toBe(false)
  })

  test('names the packages of extensions that the PostgreSQL of the platform lacks', async () => {
    const bin = makeInstallation(join(home, 'installed'), '17')
    const found = `postgis, vector, in PostgreSQL 17 with ${join(home, 'installed/share/postgresql')}`
    expect(await check('extensions', { BERTH_PG17_BIN: bin })).toMatchObject({ level: 'ok', found })
    rmSync(join(home, 'installed/share/postgresql/extension/vector.control'))
    expect(await check('extensions', { BERTH_PG17_BIN: bin })).toMatchObject({
      level: 'warning',
      found: 'without postgresql-17-pgvector',
      fix: expect.stringMatching(/apt-get install -y postgresql-17-pgvector,/),
    })
  })

  test('finds the PostgreSQL of the distribution, and shows it where the operator prefers it', async () => {
    const bin = makeInstallation(join(home, 'distribution/17'), '17')
    const distribution = { BERTH_POSTGRES_DIRECTORY: join(home, 'distribution') }
    expect((await check('extensions', distribution)).found).toContain('postgis, vector, in PostgreSQL 17')
    expect((await check('PostgreSQL 17', distribution)).found).toContain('from npm')
    const preferred = await check('PostgreSQL 17', { ...distribution, BERTH_POSTGRES: 'distribution' })
    expect(preferred).toMatchObject({ level: 'ok', found: expect.stringContaining(`from the system, in ${bin}`) })
  })

  test('shows the PostgreSQL of an existing home without adding to it', async () => {
    const opened = await openHome(home, { uidBase: 300_000, registry: join(home, 'registry') })
    const { bin, version } = await ensureToolchain('17', opened)
    const before = readdirSync(opened.toolchain)
    expect(await check('PostgreSQL 17')).toMatchObject({ level: 'ok', found: expect.stringContaining(version) })
    expect((await check('PostgreSQL 17')).found).toContain(bin)
    expect(readdirSync(opened.toolchain)).toEqual(before)
  })

  test('shows the version of every part beside those it was tested with', async () => {
    const parts = ['kernel', 'Node', 's6', 'pgbouncer', 'bubblewrap', 'iproute2', 'nftables', 'dnsmasq-base', 'openssl']
    const more = ['perl', 'util-linux', 'e2fsprogs', 'xfsprogs', 'btrfs-progs', 'git', 'PostgreSQL 16', 'PostgreSQL 17']
    const all = [...parts, ...more]
    let checks: Awaited<ReturnType<typeof doctor>>['checks'] = []
    // On a busy machine a program may take longer than the doctor waits, and its version is not known.
    await until(async () => {
      checks = (await doctor(readConfig(settings()))).checks
      return all.every((name) => /^\d+(\.\d+)+$/.test(checks.find((one) => one.name === name)?.version ?? ''))
    })
    for (const name of all) {
      const part = checks.find((one) => one.name === name)
      expect(part, name).toMatchObject({ tested: expect.arrayContaining([expect.stringMatching(/^[\d.]+$/)]) })
    }
    expect(checks.find(({ name }) => name === 'control groups')!.tested).toContain('v1')
  })

  test.runIf(/VERSION_CODENAME=(bookworm|trixie)/.test(readFileSync('/etc/os-release', 'utf8')))(
    'warns about no version that Debian 12 and 13 have',
    async () => {
      const { checks } = await doctor(readConfig(settings()))
      const warned = checks.filter(({ cost = '' }) => cost.startsWith('Berth is tested with'))
      expect(warned.filter(({ name }) => name !== 'kernel')).toEqual([]) // the kernel is that of the host
    },
  )

  test('does not wait for a database that never answers', async () => {
    const port = await listen()
    const found = await check('state database', { BERTH_DATABASE_URL: `postgresql://u:pw@127.0.0.1:${port}/x` })
    expect(found).toMatchObject({ level: 'problem' })
    expect(JSON.stringify(found)).not.toContain('pw')
  })
})

describe('a listener address', () => {
  test('that another program uses is a problem', async () => {
    const port = await listen()
    const found = await check('platform API', { BERTH_API_LISTEN: `127.0.0.1:${port}` })
    expect(found).toMatchObject({ level: 'problem', found: `127.0.0.1:${port} is in use by another program` })
    expect(found.fix).toContain('BERTH_API_LISTEN')
  })

  test('that this platform uses is fine', async () => {
    const port = await listen()
    mkdirSync(join(home, 'run'))
    writeFileSync(join(home, 'run/addresses.json'), JSON.stringify({ sandbox: `http://127.0.0.1:${port}` }))
    expect(await check('sandbox API', { BERTH_SANDBOX_LISTEN: `127.0.0.1:${port}` })).toMatchObject({ level: 'ok' })
    expect(await check('platform API', { BERTH_API_LISTEN: `127.0.0.1:${port}` })).toMatchObject({ level: 'problem' })
  })

  test('that the edge still uses while the control plane is stopped is fine', async () => {
    const port = await listen()
    const environment = { BERTH_EDGE_LISTEN: `127.0.0.1:${port}` }
    writeFileSync(join(home, 'edge.json'), JSON.stringify({ port }))
    expect(await check('edge', environment)).toMatchObject({ level: 'problem' })
    const place = { treeDirectory: join(home, 'tree'), logDirectory: join(home, 'log') }
    for (const directory of Object.values(place)) mkdirSync(directory)
    const supervisor = s6Supervisor(place)
    try {
      await supervisor.ensureTree()
      await supervisor.ensureService('edge', { command: ['sleep', '1000'] })
      await until(async () => (await supervisor.inspectService('edge')).is === 'up')
      expect(await check('edge', environment)).toMatchObject({
        level: 'ok',
        found: expect.stringContaining('this platform'),
      })
    } finally {
      await supervisor.stopTree()
    }
    expect(await check('edge', environment)).toMatchObject({ level: 'problem' })
  })

  test('of another machine is a problem', async () => {
    const found = await check('platform API', { BERTH_API_LISTEN: '192.0.2.1:4280', BERTH_INSECURE: 'on' })
    expect(found).toMatchObject({ level: 'problem', found: '192.0.2.1:4280 is not an address of this machine' })
  })

  test('beyond loopback needs TLS', async () => {
    expect(await check('TLS', { BERTH_API_LISTEN: '0.0.0.0:0' })).toMatchObject({ level: 'problem' })
    const open = { BERTH_API_LISTEN: '0.0.0.0:0', BERTH_INSECURE: 'on' }
    expect(await check('TLS', open)).toMatchObject({ level: 'ok' })
  })
})

describe('secrets in the home', () => {
  test.each(['token', 'key'])('are a problem when others can read the %s', async (name) => {
    const file = join(home, name)
    writeFileSync(file, 'secret', { mode: 0o600 })
    expect(await check(name)).toMatchObject({ level: 'ok', found: `${file}, mode 600` })
    chmodSync(file, 0o640)
    expect(await check(name)).toMatchObject({ level: 'problem', fix: `chmod 600 ${file}` })
  })
})

describe('control groups of an unprivileged user', () => {
  const groups = { kind: 'v2' as const, controllers: ['cpu', 'memory', 'pids'], writable: [] as string[] }

  test('are delegated to the installed units', () => {
    const install = /^\.\/berth install && systemctl .*daemon-reload && systemctl .*enable --now berth-tree berth/
    expect(delegateCommands(groups, true)).toMatch(install)
  })

  test('with a missing controller need a delegation for all sessions of the user', () => {
    const fix = delegateCommands({ ...groups, writable: ['memory', 'pids'] }, true)
    expect(fix).toMatch(/systemctl edit user@\.service.*Delegate=cpu memory pids/)
  })

  test('need root without systemd delegation', () => {
    expect(delegateCommands(groups, false)).toBe('run Berth as root')
    expect(delegateCommands({ ...groups, kind: 'v1' }, true)).toBe('run Berth as root')
  })
})

const nameless = 471_147

describe.runIf(canRunAs(nameless))('a user without a name', () => {
  const berth = (command: string) => {
    const launcher = new URL('../../../berth', import.meta.url).pathname
    const env = { ...settings({ BERTH_HOME: `${home}/h` }), HOME: home, PATH: process.env.PATH }
    return spawnSync(launcher, [command], { uid: nameless, gid: nameless, env, encoding: 'utf8' })
  }

  test('is asked to add one, and nothing is started', () => {
    chownSync(home, nameless, nameless)
    const { status, stderr } = berth('up')
    expect(stderr).toContain(`(sudo useradd --uid ${nameless} berth)`)
    expect(status).toBe(1)
    expect(existsSync(`${home}/h`)).toBe(false)
    expect(berth('doctor').stdout).toContain(`number ${nameless}, without a name`)
  })
})

describe('a home', () => {
  test('that is a file is a problem', async () => {
    const file = join(home, 'file')
    writeFileSync(file, '')
    expect(await check('home', { BERTH_HOME: file })).toMatchObject({ level: 'problem' })
    expect(await check('home', { BERTH_HOME: join(file, 'below') })).toMatchObject({ level: 'problem' })
  })

  test.runIf(isRoot())('below a directory that is closed to other users is a problem', async () => {
    const closed = join(home, 'closed')
    mkdirSync(closed, { mode: 0o700 })
    const found = await check('home', { BERTH_HOME: join(closed, 'home') })
    expect(found).toMatchObject({ level: 'problem', found: `other users cannot traverse ${closed}` })
    expect(found.fix).toContain(`chmod o+x ${closed}`)
  })

  test.runIf(canRunAs(65_534))('that is not writable is a problem', async () => {
    const { checks } = await doctorElsewhere([], 65_534)
    expect(checks.find(({ name }) => name === 'home')).toMatchObject({ level: 'problem' })
    expect(checks.find(({ name }) => name === 'copy on write')!.found).toBe(`unknown: ${home} is not writable`)
  })
})

describe('a repository', () => {
  test('on the disk of the home is a warning', async () => {
    const found = await check('repository', { BERTH_REPOSITORY: join(home, 'kept') })
    expect(found).toMatchObject({ level: 'warning', found: `${home}/kept is on the same disk as the home` })
  })

  test('on another disk is fine', async () => {
    expect(await check('repository', { BERTH_REPOSITORY: '/proc/kept' })).toMatchObject({ level: 'ok' })
  })
})

describe('TLS files', () => {
  function writePair(days: [number, number], key = newKey()) {
    const files = { BERTH_TLS_CERT: join(home, 'cert.pem'), BERTH_TLS_KEY: join(home, 'key.pem') }
    writeFileSync(files.BERTH_TLS_CERT, makeCertificate(key, days))
    writeFileSync(files.BERTH_TLS_KEY, key.privateKey.export({ type: 'pkcs8', format: 'pem' }))
    return files
  }

  test('that are valid are fine', async () => {
    expect(await check('TLS', writePair([-1, 60]))).toMatchObject({ level: 'ok' })
  })

  test.each([
    ['expired', [-30, -1], 'problem', 'expired at'],
    ['are not valid yet', [1, 30], 'problem', 'is not valid before'],
    ['expire soon', [-30, 5], 'warning', 'valid until'],
  ] as const)('that %s are reported', async (_, [from, to], level, text) => {
    const found = await check('TLS', writePair([from, to]))
    expect(found).toMatchObject({ level, found: expect.stringContaining(text) })
  })

  test('that are missing, broken or do not match are a problem', async () => {
    const files = writePair([-1, 60])
    const missing = join(home, 'missing.pem')
    expect((await check('TLS', { ...files, BERTH_TLS_CERT: missing })).found).toBe(`${missing} cannot be read: ENOENT`)
    const other = newKey().privateKey.export({ type: 'pkcs8', format: 'pem' })
    writeFileSync(files.BERTH_TLS_KEY, other)
    expect((await check('TLS', files)).found).toContain('is not the key of')
    writeFileSync(files.BERTH_TLS_CERT, 'no certificate')
    expect(await check('TLS', files)).toMatchObject({
      level: 'problem',
      found: expect.stringContaining('does not hold'),
    })
  })
})

describe('the versions of clusters', () => {
  test('are not known while the platform does not run or its database has no tables', async () => {
    expect(await check('cluster versions')).toMatchObject({
      level: 'ok',
      found: expect.stringContaining('does not run'),
    })
    const { host, port, user } = inject('server')
    const url = `postgresql://${user}:hidden@/postgres?host=${encodeURIComponent(host!)}&port=${port}`
    const found = await check('cluster versions', { BERTH_DATABASE_URL: url })
    expect(found).toMatchObject({ level: 'ok', found: expect.stringContaining('does not answer') })
  })
})

describe('an external state database', () => {
  test('that answers is fine', async () => {
    const { host, port, user } = inject('server')
    const url = `postgresql://${user}:hidden@/postgres?host=${encodeURIComponent(host!)}&port=${port}`
    const found = await check('state database', { BERTH_DATABASE_URL: url })
    expect(found).toMatchObject({ level: 'ok', found: expect.stringMatching(/^PostgreSQL \d+/) })
    expect(found.found).not.toContain('hidden')
  })

  test('that does not respond is a problem', async () => {
    const found = await check('state database', { BERTH_DATABASE_URL: 'postgresql://u:hidden@127.0.0.1:1/x' })
    expect(found).toMatchObject({ level: 'problem', found: expect.stringContaining('127.0.0.1:1/x does not answer') })
    expect(JSON.stringify(found)).not.toContain('hidden')
  })
})

const canMount = isRoot() && spawnSync('unshare', ['-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']).status === 0

describe.runIf(canMount)('a machine', () => {
  const programs = {
    s6: 's6-svscan',
    pgbouncer: 'pgbouncer',
    bubblewrap: 'bwrap',
    iproute2: 'ip',
    nftables: 'nft',
    'dnsmasq-base': 'dnsmasq',
  }

  test('without the programs gets the purpose of each', async () => {
    const hide = Object.values(programs).map((program) => {
      return `for f in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do if [ -e $f/${program} ]; then mount --bind /dev/null $f/${program}; fi; done`
    })
    const { checks, install } = await doctorElsewhere(hide)
    expect(install).toBe(`apt-get install -y ${Object.keys(programs).join(' ')}`)
    for (const name of Object.keys(programs)) {
      expect(checks.find((one) => one.name === name)).toEqual({
        name,
        ok: false,
        level: name === 's6' ? 'problem' : 'warning',
        found: 'not installed',
        cost: expect.stringContaining(`Without ${name}`),
        fix: `apt-get install -y ${name}`,
        tested: [expect.stringMatching(/^\d/), expect.stringMatching(/^\d/)],
        install: [name],
      })
    }
  })

  test('with another version of a program is told which ones were tested', async () => {
    const program = `${home}/pgbouncer`
    writeFileSync(program, '#!/bin/sh\necho "PgBouncer 1.9.0"\n', { mode: 0o755 })
    let found: Awaited<ReturnType<typeof check>> | undefined
    await until(async () => {
      const { checks } = await doctorElsewhere([`mount --bind ${program} $(command -v pgbouncer)`])
      found = checks.find(({ name }) => name === 'pgbouncer')
      return found?.version !== undefined
    })
    expect(found).toMatchObject({
      level: 'warning',
      version: '1.9.0',
      found: expect.stringMatching(/^1\.9\.0 at .*\/pgbouncer$/),
      cost: expect.stringContaining('This one is older'),
      fix: 'apt-get install -y pgbouncer',
    })
  })

  test.each([
    ['64m', 'problem'],
    ['2g', 'warning'],
    ['6g', 'ok'],
  ])('with a disk of %s has the level %s', async (size, level) => {
    const { checks } = await doctorElsewhere([`mount -t tmpfs -o size=${size} tmpfs ${home}`])
    expect(checks.find(({ name }) => name === 'disk space')).toMatchObject({ level })
  })
})

/** Runs doctor in another process, after commands that change its view of the machine. */
async function doctorElsewhere(commands: string[], uid?: number): Promise<Awaited<ReturnType<typeof doctor>>> {
  const code = `import { doctor } from '${source}doctor/doctor.ts'; import { readConfig } from '${source}config.ts';
    console.log(JSON.stringify(await doctor(readConfig(${JSON.stringify(settings())}))))`
  const script = [...commands, 'exec "$@"'].join('\n')
  const node = [process.execPath, '--disable-warning=ExperimentalWarning', '--input-type=module', '-e', code]
  const prefix = commands.length > 0 ? ['unshare', '-m', 'sh', '-ec', script, 'sh'] : []
  const [command = '', ...args] = [...prefix, ...node]
  const { stdout } = await promisify(execFile)(command, args, { cwd: '/', ...(uid ? { uid, gid: uid } : {}) })
  return JSON.parse(stdout)
}

function newKey() {
  return generateKeyPairSync('ec', { namedCurve: 'P-256' })
}

/** Creates a self-signed certificate that is valid between two offsets from now in days. */
function makeCertificate(key: { publicKey: KeyObject; privateKey: KeyObject }, [from, to]: [number, number]): string {
  const sequence = (...parts: Buffer[]) => der(0x30, ...parts)
  const algorithm = sequence(der(0x06, Buffer.from('2a8648ce3d040302', 'hex')))
  const commonName = sequence(der(0x06, Buffer.from('550403', 'hex')), der(0x0c, Buffer.from('localhost')))
  const name = sequence(der(0x31, commonName))
  const body = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, Buffer.from([1])),
    algorithm,
    name,
    sequence(time(from), time(to)),
    name,
    key.publicKey.export({ type: 'spki', format: 'der' }),
  )
  const signature = der(0x03, Buffer.from([0]), sign('sha256', body, key.privateKey))
  const base64 = sequence(body, algorithm, signature).toString('base64').replaceAll(/.{64}/g, '$&\n')
  return `-----BEGIN CERTIFICATE-----\n${base64}\n-----END CERTIFICATE-----\n`
}

function time(days: number): Buffer {
  const text = new Date(Date.now() + days * 86_400_000).toISOString().replaceAll(/[-:T]|\.\d+/g, '')
  return der(0x18, Buffer.from(text))
}

function der(tag: number, ...parts: Buffer[]): Buffer {
  const content = Buffer.concat(parts)
  const { length } = content
  const header = length < 128 ? [length] : length < 256 ? [0x81, length] : [0x82, length >> 8, length & 255]
  return Buffer.concat([Buffer.from([tag, ...header]), content])
}
