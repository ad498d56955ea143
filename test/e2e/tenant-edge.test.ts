// Attacks from the position of an edge that an attacker has taken over, of the state database's user, and of a client of the
// edge: what each can reach beyond its own task.
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs'
import { connect as connectTcp } from 'node:net'
import { connect as connectTls } from 'node:tls'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../support/berth.ts'
import { destroy } from '../support/client.ts'
import { until } from '../support/until.ts'

const isRoot = process.getuid?.() === 0
const berth = new Berth({ BERTH_EDGE_WORKERS: '2' })
const boxes = { acme: 'edge-acme.sandbox.localhost', globex: 'edge-globex.sandbox.localhost' }

interface EdgeSettings {
  uid: number
  port: number
  certificateKey: string
  database: pg.ClientConfig & { password?: string }
}

const settings = (): EdgeSettings => JSON.parse(readFileSync(`${berth.home}/edge.json`, 'utf8'))

/** The processes of this platform, with their user. */
function listProcesses(): { pid: number; uid: number; command: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const command = readFileSync(`/proc/${name}/cmdline`, 'latin1').replaceAll('\0', ' ')
        const environment = readFileSync(`/proc/${name}/environ`, 'latin1')
        if (!`${command}${environment}`.includes(berth.home)) return []
        return [{ pid: Number(name), uid: statSync(`/proc/${name}`).uid, command }]
      } catch {
        return [] // it has ended
      }
    })
}

const statusOf = (pid: number) => readFileSync(`/proc/${pid}/status`, 'utf8')
/** /proc shows root as the owner of processes that changed their user, so the status is read. */
const uidOf = (pid: number) => Number(/^Uid:\t(\d+)/m.exec(statusOf(pid))![1])
const findWorkers = () => listProcesses().filter(({ command }) => command.includes('edge/worker.ts'))
const findServer = () => listProcesses().find(({ command }) => /bin\/postgres -D \S+\/state\/data/.test(command))!

/** Runs a shell command as a user of this host. Returns its exit code and output. */
function runAs(uid: number, command: string, ...args: string[]): { code: number | null; text: string } {
  const { status, stdout, stderr } = spawnSync('/bin/sh', ['-c', command, 'sh', ...args], {
    uid,
    gid: uid,
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    encoding: 'latin1',
    timeout: 20_000,
  })
  return { code: status, text: `${stdout}${stderr}` }
}

async function createSandbox(org: string, host: string): Promise<void> {
  await berth.ok('POST', '/v1/orgs', { slug: org })
  const { token } = await berth.ok('POST', '/v1/tokens', { kind: 'org', org_slug: org })
  const made = await fetch(`${berth.addresses.sandbox}/v1/sandboxes`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}` },
    body: JSON.stringify({ name: host.split('.')[0] }),
  })
  if (made.status !== 201) throw new Error(`create sandbox: ${made.status} ${await made.text()}`)
}

/** Sends bytes to the edge and returns the status of the first response. */
async function send(text: string, servername?: string): Promise<number> {
  const { port } = settings()
  const socket =
    servername === undefined
      ? connectTcp({ port, host: '127.0.0.1' })
      : connectTls({ port, host: '127.0.0.1', servername, rejectUnauthorized: false })
  let answer = ''
  socket.on('error', () => {})
  socket.on('data', (chunk) => {
    answer += chunk
  })
  socket.write(text, 'latin1')
  await once(socket, 'close')
  return Number(/^HTTP\/1\.1 (\d+) /.exec(answer)?.[1])
}

const get = (host: string) => `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`

beforeAll(async () => {
  await berth.up()
  for (const [org, host] of Object.entries(boxes)) await createSandbox(org, host)
  for (const host of Object.values(boxes)) await until(async () => (await send(get(host))) === 401)
})

afterAll(() => destroy(berth))

describe.runIf(isRoot)('the users of the platform', () => {
  test('the control plane, the edge and the state database have different users', async () => {
    const workers = findWorkers()
    const server = findServer()
    expect(workers).toHaveLength(2)
    const edge = uidOf(workers[0]!.pid)
    const state = uidOf(server.pid)
    expect(edge).toBe(state + 65_535)
    expect(settings().uid).toBe(edge)
    const others = listProcesses().filter(
      ({ pid, command }) => !workers.some((each) => each.pid === pid) && !command.includes('postgres'),
    )
    for (const { pid, command } of others) {
      if (existsSync(`/proc/${pid}`)) expect([edge, state], command).not.toContain(uidOf(pid))
    }
  })

  test('neither the edge nor the state database has capabilities, further groups or a way to gain privileges', () => {
    for (const { pid } of [...findWorkers(), findServer()]) {
      const status = statusOf(pid)
      const uid = uidOf(pid)
      for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb'])
        expect(status).toMatch(new RegExp(`^${set}:\\t0+$`, 'm'))
      expect(status).toMatch(new RegExp(`^Uid:\\t${uid}\\t${uid}\\t${uid}\\t${uid}$`, 'm'))
      expect(status).toMatch(new RegExp(`^Gid:\\t${uid}\\t${uid}\\t${uid}\\t${uid}$`, 'm'))
      expect(/^Groups:\t(.*)$/m.exec(status)![1]!.trim()).toMatch(new RegExp(`^(${uid})?$`))
      expect(status).toMatch(/^NoNewPrivs:\t1$/m)
    }
  })

  test.each(['edge', 'state database'])(
    'the user of the %s reads no file of the platform that is not its own',
    (who) => {
      const uid = uidOf(who === 'edge' ? findWorkers()[0]!.pid : findServer().pid)
      const secrets = ['key', 'token', 'edge.json', 'ca/ca.key', 'edge-tls/server.key', 'tree', 'log', 'cache']
      const foreign = who === 'edge' ? ['state/data', 'state/data/PG_VERSION', 'state/data/base'] : []
      for (const place of [...secrets, ...foreign]) {
        expect(existsSync(`${berth.home}/${place}`), place).toBe(true)
        expect(runAs(uid, 'cat "$1" || ls "$1"', `${berth.home}/${place}`).text, place).toMatch(/Permission denied/)
      }
      // Nothing in the home that it does not own can be written.
      const writable = runAs(uid, 'find "$1" -writable ! -type l ! -type s 2>/dev/null', berth.home).text.split('\n')
      const own = new RegExp(`^$|^${berth.home}/(state/data|run/state)(/|$)`)
      const others = writable.filter((path) => !(who === 'state database' && own.test(path)) && path !== '')
      expect(others).toEqual([])
    },
  )

  test('the edge can open two sockets only: those of the state database and of the API for machines', () => {
    const sockets = spawnSync('find', [`${berth.home}/run`, '-type', 's'], { encoding: 'utf8' })
      .stdout.trim()
      .split('\n')
    const open = `use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); exit(connect($s, pack_sockaddr_un($ARGV[0])) ? 0 : 1)`
    const openable = (uid: number) =>
      sockets
        .filter((path) => runAs(uid, 'perl -e "$1" "$2"', open, path).code === 0)
        .map((path) => path.slice(berth.home.length + 1))
        .sort()
    expect(sockets.length).toBeGreaterThanOrEqual(2)
    expect(openable(settings().uid)).toEqual(['run/api.sock', 'run/state/.s.PGSQL.5432'])
    expect(openable(uidOf(findServer().pid))).toEqual(['run/state/.s.PGSQL.5432'])
    expect(openable(65_534)).toEqual([])
  })

  test('the users see nothing of each other and of the control plane in /proc', () => {
    const edge = settings().uid
    const state = uidOf(findServer().pid)
    for (const { pid } of listProcesses()) {
      if (!existsSync(`/proc/${pid}`)) continue
      const uid = uidOf(pid)
      for (const reader of [edge, state].filter((each) => each !== uid)) {
        for (const file of ['environ', 'mem', 'maps', 'fd', 'root']) {
          const { text } = runAs(
            reader,
            'cat "$1" >/dev/null; ls "$1" >/dev/null',
            `/proc/${pid}/${file}/`.replace(/\/$/, ''),
          )
          if (existsSync(`/proc/${pid}`) && file !== 'root')
            expect(text, `${pid} ${file}`).toMatch(/denied|not permitted/)
        }
      }
    }
  })

  test('a worker keeps no file of root open, and one worker cannot read the memory of another', () => {
    const [first, second] = findWorkers()
    for (const { pid } of [first!, second!]) {
      const files = readdirSync(`/proc/${pid}/fd`).map((fd) => {
        try {
          return readlinkSync(`/proc/${pid}/fd/${fd}`)
        } catch {
          return ''
        }
      })
      expect(files.filter((file) => file.startsWith(berth.home))).toEqual([])
    }
    const { text } = runAs(settings().uid, 'cat "$1"', `/proc/${second!.pid}/environ`)
    expect(text).toMatch(/Permission denied/)
  })
})

test('no command line and no environment of a service contains a secret', () => {
  const { certificateKey, database } = settings()
  const secrets = [berth.token, certificateKey, database.password, readFileSync(`${berth.home}/key`).toString('latin1')]
  for (const { pid } of listProcesses()) {
    for (const file of ['cmdline', 'environ']) {
      const path = `/proc/${pid}/${file}`
      const text = existsSync(path) ? readFileSync(path, 'latin1') : ''
      for (const secret of secrets) if (secret) expect(text).not.toContain(secret)
    }
  }
  expect(statSync(`${berth.home}/edge.json`).mode & 0o777).toBe(0o600)
})

describe('the login of the edge', () => {
  async function query(sql: string, change: pg.ClientConfig = {}): Promise<string> {
    const client = new pg.Client({ ...settings().database, ...change })
    try {
      await client.connect()
      const { rows } = await client.query(sql)
      return JSON.stringify(rows)
    } catch (error) {
      return (error as Error).message
    } finally {
      await client.end().catch(() => {})
    }
  }

  test('sees routes and no secrets', async () => {
    expect(await query('select current_user as role')).toBe('[{"role":"berth_edge"}]')
    expect(await query('select name from sandbox order by name')).toBe('[{"name":"edge-acme"},{"name":"edge-globex"}]')
    for (const sql of [
      'select hash from token',
      'select value from secret',
      'select password from cluster_user',
      'select environment from sandbox',
      'select secrets, config from machine',
      'select rolpassword from pg_authid',
      `update sandbox set url_auth = 'public'`,
      `insert into token (id, hash, kind) values ('x', '\\x00', 'root')`,
      `select pg_read_file('pg_hba.conf')`,
      `copy (select 1) to program 'id'`,
      'create table x (id int)',
      'set role berth',
    ]) {
      expect(await query(sql), sql).toMatch(/permission denied/)
    }
  })

  test.runIf(isRoot)('has a password that only root can read, and no other role', async () => {
    const { password, ...login } = settings().database
    expect(password).toMatch(/^[\w-]{32}$/)
    expect(await query('select 1', { password: 'x' })).toMatch(/password authentication failed/)
    expect(await query('select 1', { database: 'postgres' })).toMatch(/no pg_hba.conf entry/)
    // The same socket, the role of the control plane, the user of the edge.
    const psql = readdirSync(`${berth.home}/toolchain`).map((name) => `${berth.home}/toolchain/${name}/bin/psql`)
    const program = psql.find((path) => existsSync(path)) ?? 'psql'
    const asEdge = runAs(settings().uid, '"$1" -w -h "$2" -U berth -d berth -c "select 1"', program, String(login.host))
    expect(asEdge.code).not.toBe(0)
    expect(asEdge.text).toMatch(/Peer authentication failed|not found/)
  })

  test.runIf(isRoot)('keeps its password while the settings stay, and gets another one with new workers', async () => {
    const before = settings().database.password
    await restart()
    expect(settings().database.password).toBe(before)
    berth.environment.BERTH_AUTOSTOP_INTERVAL = '5m'
    await restart()
    expect(settings().database.password).not.toBe(before)
    await until(async () => (await send(get(boxes.acme))) === 401)
  })

  async function restart(): Promise<void> {
    const [running] = berth.children.slice(-1)
    running!.kill('SIGTERM')
    await once(running!, 'exit')
    await berth.up()
  }
})

describe('a client of the edge', () => {
  test.each(['\x0b', '\x0c', '\xa0'])('cannot hide a framing field behind %j', async (space) => {
    const text = `POST / HTTP/1.1\r\nHost: ${boxes.acme}\r\nTransfer-Encoding:${space}chunked\r\n\r\n0\r\n\r\n`
    expect([400, 501]).toContain(await send(text))
  })

  test('cannot use a connection that was opened for another organization', async () => {
    expect(await send(get(boxes.acme), boxes.acme)).toBe(401)
    expect(await send(get(boxes.globex), boxes.acme)).toBe(421)
    expect(await send(get(boxes.acme), boxes.globex)).toBe(421)
    expect(await send(get(boxes.globex), boxes.globex)).toBe(401)
  })

  test('is not read as the operator when a proxy on this host forwards its request', async () => {
    const metrics = (headers: Record<string, string>) => fetch(`${berth.addresses.api}/metrics`, { headers })
    expect((await metrics({})).status).toBe(200)
    expect((await metrics({ 'x-forwarded-for': '198.51.100.7' })).status).toBe(401)
  })
})
