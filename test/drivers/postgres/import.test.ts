import { existsSync, globSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { outboundPolicy } from '../../../src/drivers/network/guarded-http.ts'
import { parseAllowedTarget } from '../../../src/drivers/network/outbound-address.ts'
import type { CopyState, ImportDriver, ImportTask } from '../../../src/drivers/postgres/import/driver.ts'
import { importDriver } from '../../../src/drivers/postgres/import/import.ts'
import { importPaths } from '../../../src/drivers/postgres/import/paths.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import { newId } from '../../../src/model/ids.ts'
import type { ImportSource } from '../../../src/model/postgres/import.ts'
import { ask, type ClusterBench, openBench, password, type TestCluster, untilReady } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

const secret = 'a:secret\\of the source'

let bench: ClusterBench
let imports: ImportDriver
let target: TestCluster
let origin: TestCluster

beforeAll(async () => {
  bench = await openBench()
  const { home, supervisor, postgres } = bench
  const policy = outboundPolicy({ allowed: [parseAllowedTarget('127.0.0.1')] })
  imports = importDriver({ home, supervisor, jobs: jobDriver(supervisor), postgres, policy })
  target = await bench.startCluster('16')
  origin = await bench.newCluster('16')
  origin.spec.settings = { wal_level: 'logical' }
  await postgres.ensureData(origin.id, origin.spec)
  await postgres.ensureRunning(origin.id, origin.spec)
  await untilReady(postgres, origin.id)
  await postgres.users.setPassword(origin.id, 'fly-user', password)
  await postgres.query(origin.id, 'postgres', `create role exporter superuser login password '${secret}'`)
}, 120_000)

afterEach(async () => {
  await imports.dropCopy(target.id)
  await imports.remove(target.id)
})

afterAll(() => bench.remove())

function taskOf(change: Partial<ImportSource> = {}, live = false): ImportTask {
  const login = { user: 'exporter', password: secret, database: 'fly-db', sslMode: 'prefer' as const }
  const source = { host: '127.0.0.1', port: origin.spec.port, ...login, ...change }
  return { id: newId(), source, addresses: ['127.0.0.1'], jobs: 2, live }
}

/** Each forwarder is a new one: the socket of the one before is in its place until it listens. */
async function inspect(task: ImportTask) {
  await imports.remove(target.id)
  await imports.ensureForwarder(target.id, target.spec, task)
  return imports.inspectSource(target.id, target.spec, task)
}

async function ended(look: () => Promise<CopyState>): Promise<CopyState> {
  await until(async () => (await look()).is !== 'running', 120)
  return look()
}

async function dump(task: ImportTask): Promise<CopyState> {
  await imports.ensureForwarder(target.id, target.spec, task)
  await imports.startDump(target.id, target.spec, task)
  return ended(() => imports.inspectDump(target.id))
}

async function restore(task: ImportTask): Promise<CopyState> {
  await imports.startRestore(target.id, target.spec, task, [])
  return ended(() => imports.inspectRestore(target.id))
}

const inSource = (sql: string) => bench.postgres.query(origin.id, 'fly-db', sql)
const inCopy = (sql: string) => bench.postgres.query(target.id, 'berth_import', sql)

/** All processes of a service or job. */
function commandLines(): string {
  return globSync('/proc/[0-9]*/{cmdline,environ}')
    .map((file) => {
      try {
        return readFileSync(file, 'utf8')
      } catch {
        return ''
      }
    })
    .join('\n')
}

describe('the way to the source', () => {
  test('leads to public addresses and to those that the operator allows', async () => {
    const { source } = taskOf()
    expect(await imports.resolve(source)).toEqual(['127.0.0.1'])
    for (const host of ['169.254.169.254', '10.0.0.1', '127.0.0.2', '::1', 'localhost', 'nowhere.invalid']) {
      await expect(imports.resolve({ ...source, host }), host).rejects.toThrow('the source cannot be reached')
    }
  })

  test('is a process without rights, which every program of the cluster can use and no other user', async () => {
    await inspect(taskOf())
    const { sockets, forwarder } = importPaths(bench.home, target.id)
    const state = await bench.supervisor.inspectService(forwarder)
    const status = readFileSync(`/proc/${(state as { pid: number }).pid}/status`, 'utf8')
    expect(status).toMatch(/NoNewPrivs:\t1/)
    if (isRoot()) {
      expect(status).toMatch(/CapEff:\t0+\n/)
      expect(status).not.toMatch(/Uid:\t0/)
      expect(statSync(sockets)).toMatchObject({ uid: 0, gid: target.spec.uid })
    }
    expect(statSync(sockets).mode & 0o007).toBe(0)
  })

  test('uses TLS as sslmode says', async () => {
    const sessions = () =>
      bench.postgres.query(
        origin.id,
        'postgres',
        `select bool_or(ssl) as tls from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'exporter'`,
      )
    const task = taskOf({ sslMode: 'require' })
    await imports.ensureForwarder(target.id, target.spec, task)
    const { sockets } = importPaths(bench.home, target.id)
    const client = new pg.Client({ host: sockets, port: 5432, user: 'exporter', password: secret, database: 'fly-db' })
    await client.connect()
    expect(await sessions()).toEqual([{ tls: true }])
    await client.end()
    await expect(inspect(taskOf({ sslMode: 'verify-full' }))).rejects.toThrow(
      /^TLS with the source failed: .*certificate/,
    )
    expect(await inspect(taskOf({ sslMode: 'disable' }))).toMatchObject({ problems: [] })
  })
})

describe('a source', () => {
  let server: Server | undefined
  const sockets = new Set<Socket>()

  afterEach(() => {
    for (const socket of sockets) socket.destroy()
    server?.close()
    server = undefined
  })

  /** A hostile server that answers with this. */
  async function serve(answer: (socket: Socket) => void): Promise<number> {
    server = createServer((socket) => {
      sockets.add(socket)
      socket.on('error', () => undefined)
      socket.once('data', () => answer(socket))
    })
    await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve))
    return (server.address() as { port: number }).port
  }

  test('that is no PostgreSQL server looks like none at all', async () => {
    const port = await serve((socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'))
    await expect(inspect(taskOf({ port }))).rejects.toThrow('the source cannot be reached')
    server?.close()
    await expect(inspect(taskOf({ port }))).rejects.toThrow('the source cannot be reached')
  })

  test('that answers without end is cut off', { timeout: 60_000 }, async () => {
    const chunk = Buffer.alloc(1024 * 1024, 0)
    const port = await serve((socket) => {
      // The beginning of a message of one gigabyte.
      socket.write(Buffer.from([0x45, 0x40, 0, 0, 0]))
      const more = () => {
        while (!socket.destroyed && socket.write(chunk));
      }
      socket.on('drain', more)
      more()
    })
    await expect(inspect(taskOf({ port, sslMode: 'disable' }))).rejects.toThrow(
      'the connection to the source failed: its answer is too large',
    )
  })

  test('that asks for a client certificate is refused with what would help', async () => {
    const port = await serve((socket) => {
      const fields = ['SFATAL', 'VFATAL', 'C28000', 'Mconnection requires a valid client certificate', '']
      const body = Buffer.from(`${fields.join('\0')}\0`)
      const message = Buffer.alloc(5)
      message.write('E')
      message.writeInt32BE(body.length + 4, 1)
      socket.end(Buffer.concat([message, body]))
    })
    await expect(inspect(taskOf({ port, sslMode: 'disable' }))).rejects.toThrow(
      'the source asks for a client certificate, which imports cannot present',
    )
  })

  test('with what cannot be imported is described', async () => {
    await inSource(
      `create function public.raw(text) returns text language internal as 'upper';
       create table public.bare (n int); create unlogged table public.fast (n int primary key)`,
    )
    try {
      const facts = await inspect(taskOf({}, true))
      expect(facts.problems).toEqual([
        'functions in C cannot be imported: public.raw',
        'tables without a primary key need "alter table … replica identity full" at the source: public.bare',
      ])
      expect(facts.warnings).toEqual(['changes of unlogged tables are not replicated: public.fast'])
      expect((await inspect(taskOf())).problems).toHaveLength(1)
      await expect(inspect(taskOf({ password: 'wrong' }))).rejects.toMatchObject({
        message: 'the source reports: password authentication failed for user "exporter"',
        isTransient: false,
      })
    } finally {
      await inSource('drop function public.raw; drop table public.bare, public.fast')
    }
  })

  test('newer than the cluster is refused', async () => {
    const older = { ...target.spec, toolchain: { ...target.spec.toolchain, major: '15' as never } }
    const task = taskOf()
    await imports.ensureForwarder(target.id, older, task)
    expect((await imports.inspectSource(target.id, older, task)).problems).toEqual([
      'the source runs PostgreSQL 16; a cluster of version 15 can import versions up to 15',
    ])
  })
})

describe('a copy', () => {
  beforeAll(async () => {
    await ask(
      origin.spec.port,
      `create function public.spy(text) returns text language plpgsql immutable as $$ begin
         if current_setting('is_superuser') = 'on' then raise exception 'this runs as superuser'; end if; return $1; end $$;
       create table public.item (id int primary key, name text);
       insert into public.item select n, repeat('x', 500) || n from generate_series(1, 20000) n;
       create index on public.item (public.spy(name));
       create table public.log (who text, "when" timestamptz default now(), id bigserial primary key);
       create function public.note() returns trigger language plpgsql as $$ begin
         insert into public.log (who) values (current_user || ' ' || current_setting('is_superuser')); return null; end $$;
       create trigger note after insert on public.item for each row execute function public.note();
       alter table public.item enable replica trigger note`,
    )
  })

  test('is made without the rights of a superuser and without a password in any process', {
    timeout: 120_000,
  }, async () => {
    const task = taskOf()
    await imports.ensureForwarder(target.id, target.spec, task)
    await imports.startDump(target.id, target.spec, task)
    let seen = ''
    await until(async () => {
      seen += commandLines()
      return (await imports.inspectDump(target.id)).is !== 'running'
    }, 60)
    expect(seen).toContain(importPaths(bench.home, target.id).work)
    expect(seen).not.toContain(secret)
    expect(await imports.inspectDump(target.id)).toEqual({ is: 'done' })
    expect(await restore(task)).toEqual({ is: 'done' })
    expect(await inCopy('select count(*)::int as n, min(length(name)) as length from public.item')).toEqual([
      { n: 20_000, length: 501 },
    ])
    await imports.remove(target.id)
    expect(existsSync(importPaths(bench.home, target.id).directory)).toBe(false)
    expect(bench.supervisor.listServices().filter((name) => /^(source|dump|load)-/.test(name))).toEqual([])
  })

  test('that was killed starts again in an empty database', { timeout: 120_000 }, async () => {
    const task = taskOf()
    expect(await dump(task)).toEqual({ is: 'done' })
    await imports.startRestore(target.id, target.spec, task, [])
    const { restoreJob } = importPaths(bench.home, target.id)
    await until(async () => (await inCopy(`select to_regclass('public.item') as found`))[0]!.found !== null)
    await bench.supervisor.signalService(restoreJob, 'SIGKILL')
    expect(await ended(() => imports.inspectRestore(target.id))).toEqual({ is: 'absent' })
    expect(await restore(task)).toEqual({ is: 'done' })
    expect(await inCopy('select count(*)::int as n from public.item')).toEqual([{ n: 20_000 }])
  })

  test('with other rows than its source fails, and so does one that cannot be restored', {
    timeout: 120_000,
  }, async () => {
    const task = taskOf()
    expect(await dump(task)).toEqual({ is: 'done' })
    const counts = `${importPaths(bench.home, target.id).work}/source.counts`
    expect(readFileSync(counts, 'utf8')).toBe('public.item|20000\npublic.log|0\n')
    writeFileSync(counts, 'public.item|20001\npublic.log|0\n')
    expect(await restore(task)).toEqual({
      is: 'failed',
      reason: 'the copy differs from the source: in the source: public.item|20001: in the copy: public.item|20000',
    })
    await inSource('create operator class public.mine for type int4 using btree as function 1 btint4cmp(int4, int4)')
    expect(await dump(task)).toEqual({ is: 'done' })
    const failed = await restore(task)
    await inSource('drop operator family public.mine using btree cascade')
    expect(failed).toMatchObject({
      is: 'failed',
      reason: expect.stringContaining('must be superuser to create an operator family'),
    })
  })

  test('replaces only an empty database', { timeout: 60_000 }, async () => {
    await ask(target.spec.port, 'create table public.mine (n int)')
    expect(await imports.findTargetProblem(target.id, 'fly-db')).toBe(
      'database fly-db is not empty: it has the relation public.mine; import into an empty database',
    )
    await expect(imports.findTargetProblem(target.id, 'nowhere')).resolves.toBe('database nowhere does not exist')
    await ask(target.spec.port, 'drop table public.mine')
    for (const [make, drop] of [
      ['create function public.f() returns int language sql as $$ select 1 $$', 'drop function public.f'],
      ['create schema s', 'drop schema s'],
      ['select lo_create(99)', 'select lo_unlink(99)'],
      [`create type public.mood as enum ('ok')`, 'drop type public.mood'],
    ]) {
      await ask(target.spec.port, make!)
      expect(await imports.findTargetProblem(target.id, 'fly-db'), make).toMatch(/is not empty/)
      await ask(target.spec.port, drop!)
    }
    expect(await imports.findTargetProblem(target.id, 'fly-db')).toBeUndefined()
  })

  test('follows the source as a schema admin, and leaves no slot behind', { timeout: 120_000 }, async () => {
    target.spec.subscribes = true
    await bench.postgres.ensureRunning(target.id, target.spec)
    await until(() => imports.canSubscribe(target.id).catch(() => false))
    const task = taskOf({}, true)
    expect(await dump(task)).toEqual({ is: 'done' })
    // An interrupted dump has left a slot, which another one replaces.
    expect(await dump(task)).toEqual({ is: 'done' })
    await ask(origin.spec.port, `insert into public.item select n, 'late' from generate_series(30001, 30100) n`)
    expect(await restore(task)).toEqual({ is: 'done' })
    await imports.subscribe(target.id, target.spec, task)
    await imports.subscribe(target.id, target.spec, task)
    await until(async () => {
      const seen = await imports.inspectLive(target.id, target.spec, task)
      return seen.is === 'running' && seen.lagBytes === 0 && seen.transaction !== null
    })
    expect(await inCopy('select count(*)::int as n from public.item')).toEqual([{ n: 20_100 }])
    expect(await inCopy('select who, count(*)::int as n from public.log group by 1 order by 1')).toEqual([
      { who: 'schema_admin off', n: 100 },
    ])
    await imports.dropCopy(target.id)
    await imports.cleanSource(target.id, target.spec, task)
    await imports.cleanSource(target.id, target.spec, task)
    expect(await inSource('select slot_name from pg_replication_slots where slot_type = $$logical$$')).toEqual([])
    expect(await inSource('select pubname from pg_publication')).toEqual([])
    expect(await imports.inspectLive(target.id, target.spec, task)).toEqual({
      is: 'lost',
      reason: 'the subscription of the copy is gone',
    })
  })
})
