import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { until } from '../../support/until.ts'

const launcher = new URL('../../../berth', import.meta.url).pathname
const platform = new Berth()

interface Result {
  code: number | null
  out: string
  err: string
}

async function run(args: string[], program = launcher, environment: Record<string, string> = {}): Promise<Result> {
  return resultOf(
    spawn(program, args, { env: { ...platform.environment, ...environment }, stdio: ['ignore', 'pipe', 'pipe'] }),
  )
}

async function resultOf(child: ChildProcessByStdio<null, Readable, Readable>): Promise<Result> {
  const ended = new Promise<number | null>((resolve, reject) => child.once('close', resolve).once('error', reject))
  const [out, err] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => (await stream.toArray()).join('')),
  )
  return { code: await ended, out: out!, err: err! }
}

const postgres = (...args: string[]) => run(['postgres', ...args])

function startPostgres(...args: string[]) {
  return spawn(launcher, ['postgres', ...args], { env: platform.environment, stdio: ['ignore', 'pipe', 'pipe'] })
}

async function said(...args: string[]): Promise<string> {
  const { code, out, err } = await postgres(...args)
  expect({ args, code, err }).toEqual({ args, code: 0, err: '' })
  return out
}

async function json(...args: string[]) {
  const answer = JSON.parse(await said(...args, '--json'))
  return answer.data ?? answer
}

let created: Result[]

beforeAll(async () => {
  await platform.up()
  created = await Promise.all([
    postgres('create', 'seventeen'),
    postgres('create', 'sixteen', '--pg', '16', '--disk', '3', '--pool-mode', 'transaction', '--json'),
  ])
})

afterAll(() => platform.destroy())

describe('creating a cluster', () => {
  test('prints the progress, the endpoints and how to connect', () => {
    const { code, out, err } = created[0]!
    expect({ code, err }).toEqual({ code: 0, err: expect.stringMatching(/^(Cluster seventeen is \w+ \(\d+ s\)\n)+$/) })
    expect(out).toMatch(/^name +seventeen\nid +[a-z0-9]{16}\ndirect +localhost:\d+\npooler +localhost:\d+\n/)
    expect(out).toContain('berth postgres connect seventeen')
  })

  test('prints only the finished cluster with --json', () => {
    const { code, out, err } = created[1]!
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(JSON.parse(out)).toMatchObject({
      data: { name: 'sixteen', status: 'ready', pg_major_version: '16', disk_size_gb: 3, pool_mode: 'transaction' },
    })
  })

  test('rewrites one line at a terminal', async () => {
    const { code, out } = await run(['-qec', `${launcher} pg create brief`, '/dev/null'], 'script')
    expect(code).toBe(0)
    const [before, ...rewritten] = out.split('\r\u001b[2K')
    expect(before).toBe('')
    expect(rewritten[0]).toMatch(/^Cluster brief is \w+ \(\d+ s\)$/)
    expect(rewritten.at(-1)).toMatch(/^name +brief\r\n/)
    expect(await said('destroy', 'brief', '--yes', '--json')).toBe('{}\n')
  })

  test('continues after Ctrl-C, and a message says so', async () => {
    // The cluster of this fake platform never becomes ready.
    const data = { id: '0123456789abcdef', name: 'left', status: 'creating', organization: { slug: 'personal' } }
    const slow = createServer((_, reply) => void reply.end(JSON.stringify({ data }))).listen(0, '127.0.0.1')
    try {
      await once(slow, 'listening')
      const url = `http://127.0.0.1:${(slow.address() as AddressInfo).port}`
      const creating = startPostgres('create', 'left', '--url', url)
      creating.stderr.once('data', () => creating.kill('SIGINT'))
      const { code, out, err } = await resultOf(creating)
      expect({ code, out }).toEqual({ code: 130, out: '' })
      expect(err).toMatch(/^Cluster left is creating \(\d+ s\)\nCluster left is still being created\. .+ show left\n$/)
    } finally {
      slow.closeAllConnections()
      slow.close()
    }
  })

  test('prints the error of the platform when it is rejected', async () => {
    const [huge, taken, wide, big] = await Promise.all([
      postgres('create', '--plan', 'huge'),
      postgres('create', 'seventeen'),
      postgres('create', '--disk', '501'),
      postgres('create', '--disk', 'big'),
    ])
    const sentence = 'error: plan must be one of basic, starter, launch, scale, Performance\n'
    expect(huge).toEqual({ code: 1, out: '', err: sentence })
    expect(taken).toEqual({ code: 1, out: '', err: 'error: name seventeen has already been taken\n' })
    expect(wide).toEqual({ code: 1, out: '', err: 'error: --disk must be <= 500\n' })
    expect(big.code).toBe(2)
  })
})

describe('showing clusters', () => {
  test('lists clusters', async () => {
    const lines = (await said('list')).split('\n')
    expect(lines[0]).toMatch(/^NAME +ID +STATUS +PLAN +REGION +APPS +CREATED$/)
    expect(lines).toContainEqual(expect.stringMatching(/^seventeen +[a-z0-9]{16} +ready +basic +local +- /))
    const { data } = (await platform.call('GET', '/v1/postgres?org_slug=personal')).body
    expect(await json('list')).toEqual(data)
    expect((await run(['pg', 'ls', '--deleted'])).out).toMatch(/^brief .* deleted /m)
  })

  test('shows the details of a cluster, and its password only with --reveal', async () => {
    const { id, endpoints } = await json('show', 'sixteen')
    const { direct, pooler } = endpoints.primary
    const { password } = await json('users', 'credentials', id, 'fly-user')
    const shown = await said('show', 'sixteen')
    expect(shown).toContain(`postgresql://fly-user:***@localhost:${direct.port}/fly-db\n`)
    expect(shown).toContain(`postgresql://fly-user:***@localhost:${pooler.port}/fly-db\n`)
    expect(shown).toMatch(/^health +ok since /m)
    expect(shown).toMatch(/^disk +3 GB$/m)
    expect(shown).not.toContain(password)
    const revealed = await said('show', id, '--reveal')
    expect(revealed).toContain(`postgresql://fly-user:${password}@localhost:${pooler.port}/fly-db\n`)
  })

  test('reports unknown clusters and organizations', async () => {
    const named = await postgres('show', 'eighteen')
    expect(named).toEqual({
      code: 1,
      out: '',
      err: expect.stringContaining('cluster eighteen not found in organization personal'),
    })
    const byId = await postgres('show', '0123456789abcdef')
    expect(byId).toEqual({ code: 1, out: '', err: 'error: Cluster not found\n' })
    expect((await postgres('show', 'seventeen', '--org', 'acme')).err).toBe('error: organization not found\n')
  })
})

describe('connecting to a cluster', () => {
  test.each(['seventeen', 'sixteen'])('opens psql on both endpoints of %s', async (name) => {
    const question = ['--', '-XAtc', 'select session_user, current_database(), current_setting($$server_version_num$$)']
    const answer = expect.stringMatching(name === 'sixteen' ? /^fly-user\|fly-db\|16/ : /^fly-user\|fly-db\|17/)
    const asked = ['--direct', '--pooler'].map((endpoint) => postgres('connect', name, endpoint, ...question))
    const answered = { code: 0, out: answer, err: '' }
    expect(await Promise.all(asked)).toEqual([answered, answered])
  })

  test('exits with the exit code of psql', async () => {
    const [failed, lost, stranger] = await Promise.all([
      postgres('connect', 'seventeen', '--', '-Xc', 'select 1/0'),
      postgres('connect', 'seventeen', '--database', 'nowhere', '--', '-Xc', 'select 1'),
      postgres('connect', 'seventeen', '--user', 'stranger'),
    ])
    expect(failed).toEqual({ code: 1, out: '', err: expect.stringContaining('division by zero') })
    expect(lost).toMatchObject({ code: 2, err: expect.stringContaining('"nowhere" does not exist') })
    expect(lost.err).toContain('cluster seventeen has no database nowhere; choose one with --database')
    expect(stranger).toMatchObject({ code: 1, err: expect.stringContaining('seventeen has no user stranger') })
  })

  test('passes the password to psql only, and not as an argument', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'berth-psql-'))
    try {
      writeFileSync(
        `${directory}/psql`,
        `#!/bin/sh\ntr '\\0' '\\n' < /proc/$$/cmdline; echo "[$PGPASSWORD]"; exit 7\n`,
        {
          mode: 0o755,
        },
      )
      const { password } = await json('users', 'credentials', 'seventeen', 'fly-user')
      // Without a Berth home the psql of the platform is not available either.
      const elsewhere = {
        BERTH_HOME: `${directory}/none`,
        BERTH_URL: platform.addresses.api,
        BERTH_TOKEN: platform.token,
        PATH: `${directory}:${platform.environment.PATH}`,
        PGHOSTADDR: '192.0.2.1',
      }
      const { code, out } = await run(['postgres', 'connect', 'seventeen', '--', '-q'], launcher, elsewhere)
      expect({ code, out }).toEqual({ code: 7, out: `/bin/sh\n${directory}/psql\n-q\n[${password}]\n` })
    } finally {
      rmSync(directory, { recursive: true, force: true })
    }
  })

  test('verifies the server with the certificate that "ca" prints', async () => {
    const ca = await said('ca')
    expect(ca).toBe((await json('ca')).certificate)
    const { endpoints } = await json('show', 'seventeen')
    const { username: user, password } = await json('users', 'credentials', 'seventeen', 'fly-user')
    for (const { host, port } of Object.values(endpoints.primary) as { host: string; port: number }[]) {
      const ssl = { ca, servername: 'localhost' }
      const client = new pg.Client({ host, port, user, password, database: 'fly-db', ssl })
      await client.connect()
      expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }])
      await client.end()
    }
  })
})

describe('the resources of a cluster', () => {
  const whoAmI = ['--', '-XAtc', 'select session_user']

  test('users can be managed', async () => {
    const name = 'a"b; drop'
    expect(await said('users', 'create', 'seventeen', name, '--role', 'reader')).toContain(`Created user ${name}`)
    expect(await said('users', 'list', 'seventeen')).toMatch(/^a"b; drop +reader$/m)
    expect((await postgres('connect', 'seventeen', '--pooler', '--user', name, ...whoAmI)).out).toBe(`${name}\n`)
    expect(await said('users', 'role', 'seventeen', name, 'writer')).toContain('writer')
    expect(await json('users', 'list', 'seventeen')).toContainEqual({ username: name, role: 'writer' })
    const before = await json('users', 'credentials', 'seventeen', name)
    const rotated = await json('users', 'rotate', 'seventeen', name, '--kill-sessions')
    expect(rotated).toEqual({ username: name, password: expect.not.stringMatching(before.password) })
    expect(await said('users', 'credentials', 'seventeen', name)).toMatch(
      new RegExp(`^password +${rotated.password}$`, 'm'),
    )
    expect((await postgres('connect', 'seventeen', '--user', name, ...whoAmI)).out).toBe(`${name}\n`)
    expect(await said('users', 'delete', 'seventeen', name, '--yes')).toBe(`Deleted user ${name}.\n`)
    expect(await json('users', 'list', 'seventeen')).toEqual([{ username: 'fly-user', role: 'schema_admin' }])
    const reserved = await postgres('users', 'delete', 'seventeen', 'postgres', '--yes')
    expect(reserved).toEqual({ code: 1, out: '', err: 'error: user postgres is reserved\n' })
    const dots = await postgres('users', 'create', 'seventeen', '..', '--role', 'reader')
    const sentence = 'username must be 1 to 63 characters, and not "." or ".."'
    expect(dots).toEqual({ code: 1, out: '', err: `error: ${sentence}\n` })
  })

  test('databases and extensions can be managed', async () => {
    expect(await said('databases', 'create', 'sixteen', 'orders')).toBe('Created database orders.\n')
    expect(await json('databases', 'list', 'sixteen')).toContainEqual({ name: 'orders' })
    const orders = ['sixteen', '--database', 'orders']
    expect(await said('extensions', 'enable', 'sixteen', 'pg_trgm', '--database', 'orders')).toContain('pg_trgm')
    expect(await said('extensions', 'list', ...orders)).toMatch(/^pg_trgm +(\S+) +\1 +public /m)
    const similar = await postgres('connect', ...orders, '--', '-XAtc', "select similarity('a', 'a')")
    expect(similar).toEqual({ code: 0, out: '1\n', err: '' })
    expect(await json('extensions', 'disable', 'sixteen', 'pg_trgm', '--database', 'orders')).toEqual({})
    const listed = await json('extensions', 'list', ...orders)
    expect(listed).toContainEqual(expect.objectContaining({ name: 'pg_trgm', installed: null }))
    expect((await postgres('databases', 'drop', 'sixteen', 'orders')).err).toContain('use --yes')
    expect(await said('databases', 'drop', 'sixteen', 'orders', '--yes')).toBe('Dropped database orders.\n')
    expect(await said('databases', 'list', 'sixteen')).toBe('DATABASE\nfly-db\n')
  })

  test('apps can be attached and detached', async () => {
    await platform.call('POST', '/v1/apps', { app_name: 'web', org_slug: 'personal' })
    expect(await json('attach', 'seventeen', 'web')).toMatchObject({ app_name: 'web' })
    expect(await said('show', 'seventeen')).toMatch(/^apps +web$/m)
    const { body } = await platform.call('GET', '/v1/apps/web/secrets?show_secrets=true')
    const { endpoints, private_endpoints: inside } = await json('show', 'seventeen')
    const url = new URL(body.secrets[0].value)
    expect(url.hostname).toBe((inside ?? endpoints.primary).pooler.host)
    // The host itself cannot resolve names of private networks.
    const { host, port } = endpoints.primary.pooler
    const [user, password] = [url.username, url.password].map(decodeURIComponent)
    const client = new pg.Client({ host, port, user: user!, password: password!, database: url.pathname.slice(1) })
    await client.connect()
    expect((await client.query('select session_user')).rows).toEqual([{ session_user: 'fly-user' }])
    await client.end()
    expect(await said('detach', 'seventeen', 'web')).toBe(
      'Detached app web from cluster seventeen. Machines created or updated from now on no longer see DATABASE_URL.\n',
    )
    expect(await json('attach', 'seventeen', 'web')).toMatchObject({ app_name: 'web' })
    expect(await json('detach', 'seventeen', 'web')).toEqual({ removed_secrets: ['DATABASE_URL'] })
    expect((await json('show', 'seventeen')).attached_apps).toEqual([])
    const unknown = await postgres('attach', 'seventeen', 'nothing')
    expect(unknown).toEqual({ code: 1, out: '', err: 'error: app not found\n' })
  })

  test('the log can be shown and followed', async () => {
    expect(await said('logs', 'seventeen')).toContain('database system is ready to accept connections')
    expect((await json('logs', 'seventeen', '-n', '1')).lines).toHaveLength(1)
    expect((await postgres('logs', 'seventeen', '-n', '0')).err).toBe('error: lines must be from 1 to 1000\n')
    const following = startPostgres('logs', 'seventeen', '-n', '1', '-f')
    let out = ''
    following.stdout.on('data', (text) => {
      out += text
    })
    try {
      await until(() => out.includes('\n'))
      await postgres('connect', 'seventeen', '--', '-Xc', "do $$ begin raise log 'a new line'; end $$")
      await until(() => out.includes('a new line'))
      const lines = out.trimEnd().split('\n')
      expect(new Set(lines).size).toBe(lines.length)
    } finally {
      await end(following)
    }
  })
})

describe('destroying a cluster', () => {
  test('removes it completely and prints a message', async () => {
    const { id } = await json('show', 'sixteen')
    expect((await postgres('destroy', 'sixteen')).err).toContain('use --yes')
    const following = startPostgres('logs', 'sixteen', '-f', '--json')
    const followed = resultOf(following)
    await new Promise((resolve) => following.stdout.once('data', resolve))
    const { code, out } = await postgres('destroy', 'sixteen', '--yes')
    expect({ code, out }).toEqual({ code: 0, out: 'Destroyed cluster sixteen.\n' })
    const log = await followed
    expect(log).toMatchObject({ code: 0, err: '' })
    for (const line of log.out.trimEnd().split('\n')) expect(JSON.parse(line).data.lines).not.toEqual([])
    expect((await postgres('show', id)).err).toBe('error: Cluster not found\n')
    expect((await json('list')).map(({ name }: { name: string }) => name)).toEqual(['seventeen'])
    // A running backup ends later, when it notices that its cluster is deleted.
    await until(async () => {
      const { services } = JSON.parse((await run(['status', '--json'])).out)
      return services.every(({ name }: { name: string }) => !name.includes(id))
    })
  })
})
