import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, renameSync, rmSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterEach, describe, expect, inject, test } from 'vitest'
import { Berth, end, kill } from '../support/berth.ts'
import { until } from '../support/until.ts'

const started: Berth[] = []

function newBerth(environment: Record<string, string> = {}): Berth {
  const berth = new Berth(environment)
  started.push(berth)
  return berth
}

afterEach(async () => {
  for (const berth of started.splice(0)) await berth.destroy()
})

function stateDatabase(berth: Berth): pg.Client {
  const client = new pg.Client({ host: `${berth.home}/run/state`, user: 'berth', database: 'berth' })
  client.on('error', () => {})
  return client
}

function postmasterPid(berth: Berth): number {
  return Number(readFileSync(`${berth.home}/state/data/postmaster.pid`, 'utf8').split('\n')[0])
}

describe('a platform', () => {
  test('keeps its resources when the control plane is killed and started again', async () => {
    const berth = newBerth()
    const first = await berth.up()
    const made = await berth.call('POST', '/v1/apps', { app_name: 'kept', org_slug: 'personal' })
    const postmaster = postmasterPid(berth)
    await end(first)
    expect(postmasterPid(berth)).toBe(postmaster)
    process.kill(postmaster, 0)
    await berth.up()
    expect(await berth.call('GET', '/v1/apps/kept')).toMatchObject({ status: 200, body: { id: made.body.id } })
    expect(postmasterPid(berth)).toBe(postmaster)
  })

  test('stops cleanly on a signal, and its tree with "down"', async () => {
    const berth = newBerth()
    const control = await berth.up()
    const postmaster = postmasterPid(berth)
    await end(control, 'SIGTERM')
    expect(control.exitCode).toBe(0)
    process.kill(postmaster, 0)
    await berth.cli('down')
    expect(() => process.kill(postmaster, 0)).toThrow()
    await berth.cli('down')
  })

  test('is stopped as a whole while it runs', async () => {
    const berth = newBerth()
    const control = await berth.up()
    const worker = berth.spawn('worker')
    await until(() => berth.output.includes('"msg":"worker started"'))
    await berth.cli('down')
    await until(() => control.exitCode === 0 && worker.exitCode === 0)
    await until(() => processesUnder(berth.home).length === 0)
  })

  test('responds with 503 and Retry-After while its database is down, and then recovers', async () => {
    const berth = newBerth()
    await berth.up()
    await berth.call('POST', '/v1/apps', { app_name: 'kept', org_slug: 'personal' })
    const untilStatus = (status: number) =>
      until(async () => {
        const reply = await berth.call('GET', '/v1/apps/kept')
        expect([200, 503]).toContain(reply.status)
        if (reply.status === 503) expect(Number(reply.headers.get('retry-after'))).toBeGreaterThan(0)
        return reply.status === status
      })
    // Without this file the database cannot start; otherwise it would be back before the first request.
    const file = `${berth.home}/state/data/global/pg_control`
    renameSync(file, `${file}.away`)
    try {
      process.kill(postmasterPid(berth), 'SIGKILL')
      await untilStatus(503)
    } finally {
      renameSync(`${file}.away`, file)
    }
    await untilStatus(200)
    expect((await berth.call('POST', '/v1/apps', { app_name: 'after', org_slug: 'personal' })).status).toBe(201)
    const deleted = await berth.call('DELETE', '/v1/apps/after')
    expect(deleted.status).toBe(202)
  })

  test('recovers after the whole tree was killed, as by a reboot', async () => {
    const berth = newBerth()
    const control = await berth.up()
    await berth.call('POST', '/v1/apps', { app_name: 'kept', org_slug: 'personal' })
    await end(control)
    // A process may start another one before it is killed.
    await until(() => {
      for (const pid of processesUnder(berth.home)) kill(pid)
      return processesUnder(berth.home).length === 0
    })
    await berth.up()
    expect((await berth.call('GET', '/v1/apps/kept')).status).toBe(200)
  })

  test('runs beside another one on the same machine', async () => {
    const [one, two] = [newBerth(), newBerth()]
    await Promise.all([one.up(), two.up()])
    await one.call('POST', '/v1/apps', { app_name: 'mine', org_slug: 'personal' })
    expect((await two.call('GET', '/v1/apps/mine')).status).toBe(404)
    expect(one.token).not.toBe(two.token)
    expect(readFileSync(`${one.home}/number`, 'utf8')).not.toBe(readFileSync(`${two.home}/number`, 'utf8'))
  })

  test('protects its secrets', async () => {
    const berth = newBerth()
    await berth.up()
    expect(statSync(`${berth.home}/token`).mode & 0o077).toBe(0)
    expect(statSync(`${berth.home}/key`).mode & 0o077).toBe(0)
    expect(statSync(`${berth.home}/run/state`).mode & 0o067).toBe(0) // the edge may enter, by its group
    const { body } = await berth.call('POST', '/v1/tokens', { kind: 'org', org_slug: 'personal' })
    await berth.call('GET', '/v1/orgs', undefined, { authorization: `Bearer ${body.token}` })
    expect(berth.output).not.toContain(body.token)
    expect(berth.output).not.toContain(berth.token)
    await until(() => berth.output.includes('"path":"/v1/orgs"'))
    expect(berth.output).toContain('"path":"/v1/tokens"')
  })

  test('uses the token of the configuration, and revokes the previous one', async () => {
    const berth = newBerth({ BERTH_TOKEN: 'berth_first' })
    await end(await berth.up(), 'SIGTERM')
    berth.environment.BERTH_TOKEN = 'berth_second'
    await berth.up()
    expect((await berth.call('GET', '/v1/orgs')).status).toBe(200)
    expect((await berth.call('GET', '/v1/orgs', undefined, { authorization: 'Bearer berth_first' })).status).toBe(401)
  })

  test('uses an external state database, which two platforms may share', async () => {
    const server = inject('server')
    const database = `external_${process.pid}`
    const admin = new pg.Client({ ...server, database: 'postgres' })
    await admin.connect()
    await admin.query(`create database ${database}`)
    try {
      const url = `postgresql://${server.user}@/${database}?host=${encodeURIComponent(String(server.host))}&port=${server.port}`
      const environment = { BERTH_DATABASE_URL: url, BERTH_TOKEN: 'berth_shared' }
      const [one, two] = [newBerth(environment), newBerth(environment)]
      await Promise.all([one.up(), two.up()])
      await one.call('POST', '/v1/apps', { app_name: 'shared', org_slug: 'personal' })
      expect((await two.call('GET', '/v1/apps/shared')).status).toBe(200)
      for (const berth of started.splice(0)) await berth.destroy()
    } finally {
      await admin.query(`drop database ${database} with (force)`).finally(() => admin.end())
    }
  })

  test('refuses to listen beyond loopback without TLS', async () => {
    const berth = newBerth({ BERTH_API_LISTEN: '0.0.0.0:0' })
    const child = berth.spawn('up')
    await until(() => child.exitCode !== null)
    expect(child.exitCode).toBe(1)
    await until(() => berth.output.includes('BERTH_TLS_CERT'))
  })

  test('names the setting to change when a port is taken, and leaves nothing behind', async () => {
    const one = newBerth()
    await one.up()
    for (const part of ['api', 'sandbox', 'edge'] as const) {
      const setting = `BERTH_${part.toUpperCase()}_LISTEN`
      const two = newBerth({ [setting]: new URL(one.addresses[part]).host })
      const child = two.spawn('up')
      await until(() => child.exitCode !== null)
      expect(child.exitCode).toBe(1)
      await until(() => two.output.includes(`is in use by another program; set ${setting}`))
      expect(existsSync(`${two.home}/tree`)).toBe(false)
    }
  })

  test('reports that it is already running when it is started again', async () => {
    const one = newBerth()
    await one.up()
    const { host } = new URL(one.addresses.api)
    one.environment.BERTH_API_LISTEN = host
    const stderr = `error: a platform already runs in ${one.home}, at ${host}\n`
    await expect(one.cli('up')).rejects.toMatchObject({ code: 1, stderr })
  })

  test('serves TLS with the configured files', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'berth-tls-'))
    try {
      execFileSync('openssl', [
        ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '1'],
        ...['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1'],
        ...['-keyout', `${directory}/key.pem`, '-out', `${directory}/cert.pem`],
      ])
      const berth = newBerth({ BERTH_TLS_CERT: `${directory}/cert.pem`, BERTH_TLS_KEY: `${directory}/key.pem` })
      await berth.up()
      expect(berth.addresses.api).toMatch(/^https:/)
      const curl = execFileSync('curl', ['-s', '--cacert', `${directory}/cert.pem`, `${berth.addresses.api}/healthz`])
      expect(curl.toString()).toBe('{"status":"ok"}')
    } finally {
      rmSync(directory, { recursive: true, force: true })
    }
  })

  test('works with a third-party client', async () => {
    const berth = newBerth()
    await berth.up()
    const { default: Client } = createRequire(import.meta.url)('fly-admin/dist/client')
    const client = new Client(berth.token, { apiUrl: berth.addresses.api, graphqlUrl: berth.addresses.api })
    const made = await client.App.createApp({ name: 'by-client', org_slug: 'personal' })
    expect(made.id).toMatch(/^[a-z0-9]{16}$/)
    expect(await client.App.listApps('personal')).toMatchObject({ total_apps: 1, apps: [{ name: 'by-client' }] })
    await client.App.deleteApp('by-client')
    expect((await berth.call('GET', '/v1/apps/by-client')).status).toBe(404)
  })
})

describe('two worker processes', () => {
  /** Deletes an app with slow removals, so that a worker can be interrupted in the middle. */
  async function slowDeletion(db: pg.Client): Promise<void> {
    await db.query(
      `create function dawdle() returns trigger language plpgsql as 'begin perform pg_sleep(0.7); return null; end'`,
    )
    await db.query('create trigger dawdle before delete on secret for each statement execute function dawdle()')
    await db.query(
      `insert into app (id, org_id, name, network, enable_subdomains, state) select 'slow', id, 'slow', 'default', false, 'deleting' from org`,
    )
    await db.query(
      `insert into secret (app_id, name, value, digest) select 'slow', 'S' || n, '', '' from generate_series(1, 1200) n`,
    )
    await db.query(`insert into work (kind, resource_id) values ('app', 'slow')`)
    await db.query(`notify work`)
  }

  async function workersAtWork(): Promise<{ berth: Berth; db: pg.Client }> {
    const berth = newBerth()
    await end(await berth.up(), 'SIGTERM')
    const db = stateDatabase(berth)
    await db.connect()
    return { berth, db }
  }

  const one = async (db: pg.Client, sql: string) => Object.values((await db.query(sql)).rows[0])[0]
  const leased = (db: pg.Client) => one(db, 'select count(*)::int from work where token is not null')
  const deleted = (db: pg.Client) => one(db, `select count(*)::int from app where state = 'deleted'`)
  const events = async (db: pg.Client) => (await db.query(`select event from event where resource_id = 'slow'`)).rows

  test.each(['SIGKILL', 'SIGSTOP'] as const)(
    'take over from one that gets %s once its lease has expired',
    async (signal) => {
      const { berth, db } = await workersAtWork()
      try {
        const victim = berth.spawn('worker')
        await slowDeletion(db)
        await until(async () => (await leased(db)) === 1)
        const token = await one(db, 'select token from work')
        victim.kill(signal)
        // The lease lasts 4 s and the other worker polls every second, so it takes at most five seconds.
        expect(await one(db, `select leased_until <= now() + interval '4 seconds' from work`)).toBe(true)
        berth.spawn('worker')
        await until(async () => {
          const now = await one(db, 'select coalesce((select token::text from work), $$done$$)')
          return now !== null && now !== token
        })
        await until(async () => (await deleted(db)) === 1)
        victim.kill('SIGCONT')
        await until(async () => (await one(db, 'select count(*)::int from work')) === 0)
        expect(await events(db)).toEqual([{ event: 'gone' }])
        expect(await one(db, 'select count(*)::int from secret')).toBe(0)
      } finally {
        await db.end()
      }
    },
  )

  test('share the work', async () => {
    const { berth, db } = await workersAtWork()
    try {
      berth.spawn('worker')
      berth.spawn('worker')
      await db.query(`insert into app (id, org_id, name, network, enable_subdomains, state)
        select 'a' || n, org.id, 'a' || n, 'default', false, 'deleting' from org, generate_series(1, 300) n`)
      await db.query(`insert into work (kind, resource_id) select 'app', id from app`)
      await until(async () => (await deleted(db)) === 300)
      expect(await one(db, 'select count(*)::int from event')).toBe(300)
    } finally {
      await db.end()
    }
  })
})

/** Lists the processes with the home in their arguments or as working directory. */
function processesUnder(home: string): number[] {
  const pids = readdirSync('/proc').filter((entry) => /^\d+$/.test(entry) && Number(entry) !== process.pid)
  return pids.filter((pid) => speaksOf(pid, home)).map(Number)
}

function speaksOf(pid: string, home: string): boolean {
  try {
    const isZombie = /\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
    const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8') + readlinkSync(`/proc/${pid}/cwd`)
    return !isZombie && words.includes(home)
  } catch {
    return false // the process has ended
  }
}
