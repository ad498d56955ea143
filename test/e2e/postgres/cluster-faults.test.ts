import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end, kill } from '../../support/berth.ts'
import {
  accessOf,
  ask,
  attempt,
  connect,
  createCluster,
  destroy,
  expectNoTrace,
  isRunning,
  lookClosely,
  postmasterPid,
  processesOf,
  readyCluster,
  untilDeleted,
  untilOneServer,
  untilReady,
  ways,
} from '../../support/client.ts'
import { until } from '../../support/until.ts'

const show = async (berth: Berth, id: string) => (await berth.call('GET', `/v1/postgres/${id}`)).body.data

function poolerPid(berth: Berth, id: string): number {
  return processesOf(`${berth.home}/clusters/${id}/pooler/pgbouncer.ini`).find(({ line }) =>
    /^\d+ \S*pgbouncer /.test(line),
  )!.pid
}

describe('a ready cluster', () => {
  const berth = new Berth()
  let id = ''

  beforeAll(async () => {
    await berth.up()
    id = await readyCluster(berth, { pg_major_version: '17', disk_size_gb: 1 })
    await ask(await accessOf(berth, id), 'direct', 'create table kept as select 42 as x')
    // If a fault interrupts the first backup, the cluster is degraded until the next one.
    await until(async () => (await show(berth, id)).recovery_window !== null)
  }, 180_000)

  afterAll(() => destroy(berth))

  const kept = async () => {
    const access = await accessOf(berth, id)
    for (const way of ways) expect(await ask(access, way, 'select x from kept')).toEqual([{ x: 42 }])
  }
  const untilBack = async () => {
    const access = await accessOf(berth, id)
    for (const way of ways) await until(async () => (await attempt(access, way)) === true)
    await until(async () => (await show(berth, id)).health.status === 'ok')
  }

  test('restarts with the same data after its server is killed', async () => {
    const before = postmasterPid(berth, id)
    const access = await accessOf(berth, id)
    const session = await connect(access, 'direct')
    process.kill(before, 'SIGKILL')
    await expect(session.query('select pg_sleep(10)')).rejects.toThrow()
    await session.end().catch(() => {})
    await untilBack()
    expect(postmasterPid(berth, id)).not.toBe(before)
    await kept()
    expect((await show(berth, id)).status).toBe('ready')
  })

  test('restarts its pooler after it is killed', async () => {
    const before = poolerPid(berth, id)
    process.kill(before, 'SIGKILL')
    await until(() => !isRunning(before))
    await untilBack()
    expect(poolerPid(berth, id)).not.toBe(before)
    await kept()
  })

  test('keeps running without the control plane and under the next one', async () => {
    const access = await accessOf(berth, id)
    const session = await connect(access, 'pooler')
    const pid = postmasterPid(berth, id)
    await Promise.all(berth.children.splice(0).map((child) => end(child)))
    expect((await session.query('select x from kept')).rows).toEqual([{ x: 42 }])
    for (const way of ways) expect(await attempt(access, way)).toBe(true)
    await berth.up()
    expect((await session.query('select x from kept')).rows).toEqual([{ x: 42 }])
    await session.end()
    await lookClosely(berth, id)
    expect(postmasterPid(berth, id)).toBe(pid)
    expect(await show(berth, id)).toMatchObject({ status: 'ready', health: { status: 'ok' } })
  })

  test('that cannot start shows a reason, answers 503, and recovers', async () => {
    const control = `${berth.home}/clusters/${id}/data/global/pg_control`
    renameSync(control, `${control}.away`)
    try {
      process.kill(postmasterPid(berth, id), 'SIGKILL')
      await until(async () => (await show(berth, id)).health.status === 'down')
      await until(async () => /pg_control/.test((await show(berth, id)).health.reason))
      // The missing file may be noticed before the processes of the killed server have ended.
      await until(async () => (await berth.call('GET', `/v1/postgres/${id}/users`)).status === 503)
      const reply = await berth.call('GET', `/v1/postgres/${id}/users`)
      expect(reply.status).toBe(503)
      expect(Number(reply.headers.get('retry-after'))).toBeGreaterThan(0)
      expect((await show(berth, id)).status).toBe('ready')
    } finally {
      renameSync(`${control}.away`, control)
    }
    await untilBack()
    await kept()
  }, 180_000)

  test('keeps a port that another program has taken, names it, and recovers when it is free', async () => {
    const { endpoints } = await show(berth, id)
    const { port } = endpoints.primary.direct
    const control = `${berth.home}/clusters/${id}/data/global/pg_control`
    const thief = createServer()
    renameSync(control, `${control}.away`)
    try {
      process.kill(postmasterPid(berth, id), 'SIGKILL')
      await until(async () => /pg_control/.test((await show(berth, id)).health.reason))
      thief.listen(port, '127.0.0.1')
      await once(thief, 'listening')
      renameSync(`${control}.away`, control)
      const reason = `another program listens on port ${port}, which clients know; it starts as soon as the port is free`
      await until(async () => (await show(berth, id)).health.reason === `PostgreSQL is stopped: ${reason}`)
      expect((await show(berth, id)).endpoints).toEqual(endpoints)
    } finally {
      if (existsSync(`${control}.away`)) renameSync(`${control}.away`, control)
      thief.close()
    }
    await untilBack()
    await kept()
  }, 180_000)

  test('becomes read-only when its disk is nearly full, and writable again when there is space', async () => {
    const access = await accessOf(berth, id)
    const filler = `${berth.home}/clusters/${id}/data/filler`
    execFileSync('fallocate', ['-l', String(Math.ceil(0.96 * 1024 ** 3)), filler])
    try {
      await lookClosely(berth, id)
      expect((await show(berth, id)).health).toMatchObject({
        status: 'read_only',
        reason: expect.stringMatching(/disk of 1 GB is \d+ % full/),
      })
      for (const way of ways) {
        await until(async () => /read-only/.test(String(await attempt(access, way, 'create table more (x int)'))))
        expect(await attempt(access, way, 'select x from kept')).toBe(true)
        const session = await connect(access, way)
        try {
          await session.query('set default_transaction_read_only = off')
          expect((await session.query('update kept set x = x')).rowCount).toBe(1)
        } finally {
          await session.end()
        }
      }
      // The limit does not apply to the platform itself.
      expect((await berth.call('POST', `/v1/postgres/${id}/users`, { username: 'still', role: 'reader' })).status).toBe(
        201,
      )
      expect((await berth.call('DELETE', `/v1/postgres/${id}/users/still`)).status).toBe(204)
    } finally {
      rmSync(filler)
    }
    await lookClosely(berth, id)
    expect((await show(berth, id)).health).toMatchObject({ status: 'ok', reason: '' })
    for (const way of ways) {
      await until(async () => (await attempt(access, way, 'update kept set x = x')) === true)
    }
  })

  test('is deleted without remains', async () => {
    const { direct, pooler } = await accessOf(berth, id)
    expect(processesOf(id).length).toBeGreaterThan(1)
    const { uid } = statSync(`${berth.home}/clusters/${id}/data`)
    expect((await berth.call('DELETE', `/v1/postgres/${id}`)).status).toBe(202)
    await untilDeleted(berth, id)
    expect((await berth.call('DELETE', `/v1/postgres/${id}`)).status).toBe(410)
    await expectNoTrace(berth, id, [direct, pooler])
    const owners = () => execFileSync('ps', ['-eo', 'uid='], { encoding: 'utf8' }).split('\n').map(Number)
    if (uid !== 0) await until(() => !owners().includes(uid))
  })
})

describe('many clusters', () => {
  const berth = new Berth()
  const neighbour = new Berth()
  const count = 10
  let ids: string[] = []

  beforeAll(() => Promise.all([berth.up(), neighbour.up()]).then(() => undefined))

  afterAll(async () => {
    await destroy(berth)
    await destroy(neighbour)
  }, 180_000)

  test('created at once all become ready, each with its own ports and data', async () => {
    ids = await Promise.all(
      Array.from({ length: count }, (_, i) => createCluster(berth, { pg_major_version: i % 2 ? '17' : '16' })),
    )
    await Promise.all(ids.map((id) => untilReady(berth, id, 200)))
    const all = await Promise.all(ids.map((id) => accessOf(berth, id)))
    expect(new Set(all.flatMap(({ direct, pooler }) => [direct.port, pooler.port])).size).toBe(2 * count)
    for (const [i, access] of all.entries()) {
      await ask(access, 'pooler', `create table mine as select ${i} as x`)
      expect(await ask(access, 'direct', 'select x from mine')).toEqual([{ x: i }])
      expect(await attempt({ ...access, password: all[(i + 1) % count]!.password }, 'direct')).not.toBe(true)
    }
  }, 300_000)

  test('belong to one platform only', async () => {
    const other = await readyCluster(neighbour)
    const [ours, theirs] = [await accessOf(berth, ids[0]!), await accessOf(neighbour, other)]
    expect(new Set([ours.direct, ours.pooler, theirs.direct, theirs.pooler].map(({ port }) => port)).size).toBe(4)
    expect((await neighbour.call('GET', `/v1/postgres/${ids[0]}`)).status).toBe(404)
    const uids = [`${berth.home}/clusters/${ids[0]}`, `${neighbour.home}/clusters/${other}`].map(
      (directory) => statSync(`${directory}/data`).uid,
    )
    if (process.getuid?.() === 0) expect(uids[0]).not.toBe(uids[1])
    await neighbour.call('DELETE', `/v1/postgres/${other}`)
    await untilDeleted(neighbour, other)
    await expectNoTrace(neighbour, other, [theirs.direct, theirs.pooler])
    for (const way of ways) expect(await attempt(ours, way)).toBe(true)
  }, 180_000)

  test('all recover after every process was killed, as by a reboot', async () => {
    await Promise.all(berth.children.splice(0).map((child) => end(child)))
    // The first process may still have started another one.
    await until(() => {
      for (const { pid } of processesOf(berth.home)) kill(pid)
      return processesOf(berth.home).length === 0
    })
    expect(ids.every((id) => existsSync(`${berth.home}/clusters/${id}/data/postmaster.pid`))).toBe(true)
    await berth.up()
    for (const [i, id] of ids.entries()) {
      const access = await accessOf(berth, id)
      for (const way of ways) {
        await until(async () => (await attempt(access, way, 'select x from mine')) === true, 60)
        expect(await ask(access, way, 'select x from mine')).toEqual([{ x: i }])
      }
    }
    await until(async () => {
      const shown = await Promise.all(ids.map((id) => show(berth, id)))
      return shown.every(({ status, health }) => status === 'ready' && health.status === 'ok')
    }, 60)
    for (const id of ids) await untilOneServer(berth, id)
  }, 300_000)

  test('are deleted at once without remains', async () => {
    const all = await Promise.all(ids.map((id) => accessOf(berth, id)))
    await Promise.all(ids.map((id) => berth.call('DELETE', `/v1/postgres/${id}`)))
    await Promise.all(ids.map((id) => untilDeleted(berth, id, 60)))
    for (const [i, id] of ids.entries()) await expectNoTrace(berth, id, [all[i]!.direct, all[i]!.pooler])
    expect(readdirSync(`${berth.home}/clusters`)).toEqual([])
  }, 180_000)
})
