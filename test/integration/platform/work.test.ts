import { describe, expect, test } from 'vitest'
import { runLease } from '../../../src/reconcile/loop.ts'
import { startWorker, type Worker } from '../../../src/reconcile/worker.ts'
import { listen } from '../../../src/store/listen.ts'
import { enqueue, leaseDue, workChannel } from '../../../src/store/work.ts'
import { breakable } from '../../support/breakable.ts'
import { insertMachineRow } from '../../support/machine.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()

async function deletedApp(name: string, secrets = 3): Promise<string> {
  const { body } = await platform.createApp(name)
  await platform.sql(insertMachineRow, [`${body.id}-m`, body.id, 'destroyed'])
  await platform.sql(
    `insert into secret (app_id, name, value, digest) select $1, 'S' || n, '', '' from generate_series(1, $2) n`,
    [body.id, secrets],
  )
  await platform.call('DELETE', `/v1/apps/${name}?force=true`)
  return body.id
}

async function expectAllGone() {
  expect(await platform.sql(`select state from app`)).toEqual([{ state: 'deleted' }])
  expect(await platform.sql('select id from machine union all select name from secret')).toEqual([])
  expect(await platform.sql('select * from work')).toEqual([])
  expect((await platform.sql('select event from event order by id')).map((row) => row.event)).toEqual([
    'delete',
    'gone',
  ])
}

describe('the loop', () => {
  test('stores a note about what it waits for', async () => {
    await deletedApp('noted', 1200)
    await platform.turn()
    expect(await platform.sql('select note from work')).toEqual([{ note: 'removing machines and volumes' }])
  })

  test('converges when the reply of any single call is lost', async () => {
    await deletedApp('counted')
    const counting = breakable(platform.database.db, 0)
    platform.loopDb = counting.db
    await platform.work()
    const calls = counting.count()
    expect(calls).toBeGreaterThan(10)
    for (let nth = 1; nth <= calls; nth++) {
      await platform.clear()
      await deletedApp('again')
      platform.loopDb = breakable(platform.database.db, nth).db
      for (let tries = 0; tries < 3; tries++) await platform.work().catch(() => {})
      await expectAllGone()
    }
  })

  test('converges when the reply of every call is lost once', async () => {
    await deletedApp('unlucky')
    for (let nth = 1; nth <= 40; nth++) {
      platform.loopDb = breakable(platform.database.db, nth).db
      await platform.work().catch(() => {})
    }
    await expectAllGone()
  })

  test('stores the error of a failed step and retries with increasing delays', async () => {
    await deletedApp('broken')
    await platform.sql('alter table volume rename to volume_away')
    const delays: number[] = []
    for (let tries = 0; tries < 3; tries++) {
      const [{ at }] = await platform.sql('update work set run_at = now() returning run_at::text as at')
      expect((await platform.turn())?.result).toBe('error')
      const [{ delay }] = await platform.sql(
        'select extract(epoch from run_at - $1::timestamptz)::float8 as delay from work',
        [at],
      )
      delays.push(delay)
    }
    expect(await platform.sql('select attempts, last_error from work')).toEqual([
      { attempts: 3, last_error: expect.stringContaining('volume') },
    ])
    for (const [tries, delay] of delays.entries()) expect(delay).toBeGreaterThan(2 ** tries)
    await platform.sql('alter table volume_away rename to volume')
    await platform.work()
    await expectAllGone()
  })

  test('never gives one resource to two workers', async () => {
    await deletedApp('single')
    const { db } = platform.database
    const leases = await Promise.all([leaseDue(db, 5), leaseDue(db, 5), leaseDue(db, 5)])
    expect(leases.flat()).toHaveLength(1)
  })

  test('ignores the result of a worker whose lease has expired', async () => {
    const id = await deletedApp('late')
    await platform.sql('delete from machine')
    await platform.sql('delete from secret')
    const { db } = platform.database
    platform.loopDb = {
      ...db,
      query: (async (...args: Parameters<typeof db.query>) => {
        const result = await db.query(...args)
        if (String((args[0] as { name?: string }).name) === 'load-app')
          await db.query('update work set token = gen_random_uuid()')
        return result
      }) as unknown as typeof db.query,
    }
    await platform.turn()
    expect(await platform.sql('select state from app where id = $1', [id])).toEqual([{ state: 'deleting' }])
    expect((await platform.sql('select event from event')).map((row) => row.event)).toEqual(['delete'])
  })

  test('does not lose a wake-up that arrives while a step runs', async () => {
    const id = await deletedApp('woken', 600)
    const [lease] = await leaseDue(platform.database.db, 1)
    await platform.database.db.transaction((tx) => enqueue(tx, 'app', id))
    await platform.sql('delete from machine')
    await platform.sql('delete from secret')
    expect((await runLease(platform.fake.world(platform.database.db), lease!)).result).toBe('gone')
    // The last step would have removed the work row; because of the wake-up it runs once more.
    expect(await platform.sql('select run_at <= now() as due, token from work')).toEqual([{ due: true, token: null }])
    await platform.work()
    await expectAllGone()
  })

  test('removes the work row of a resource that is at rest or gone', async () => {
    await platform.createApp('resting')
    await platform.sql(`insert into work (kind, resource_id) select 'app', id from app`)
    await platform.sql(`insert into work (kind, resource_id) values ('app', 'never-was')`)
    await platform.work()
    expect(await platform.sql('select * from work')).toEqual([])
    expect(await platform.sql('select state from app')).toEqual([{ state: 'active' }])
  })

  test('a command and a worker finishing together do not deadlock', async () => {
    // Extends the time between the two locks of a transition, so that the other transaction runs in between.
    await platform.sql(
      `create function dawdle() returns trigger language plpgsql as 'begin perform pg_sleep(0.2); return new; end'`,
    )
    await platform.sql(`create trigger dawdle before insert on event for each row execute function dawdle()`)
    try {
      await platform.createApp('met')
      await platform.sql(`insert into work (kind, resource_id) select 'app', id from app`)
      const [deleted] = await Promise.all([platform.call('DELETE', '/v1/apps/met'), platform.turn()])
      expect(deleted.status).toBe(202)
      await platform.work()
      await expectAllGone()
    } finally {
      await platform.sql('drop trigger dawdle on event')
      await platform.sql('drop function dawdle')
    }
  })
})

describe('a worker', () => {
  function start(slots = 8): Worker {
    return startWorker({
      world: platform.fake.world(platform.database.db),
      listen: (woken) => listen(platform.database.config, workChannel, woken),
      slots,
      onTurn: () => {},
    })
  }

  test('processes all work and stops on request', async () => {
    const worker = start()
    try {
      await Promise.all(Array.from({ length: 30 }, (_, i) => deletedApp(`many-${i}`, 2)))
      await until(async () => (await platform.sql(`select 1 from app where state <> 'deleted'`)).length === 0)
      await until(async () => (await platform.sql('select 1 from work')).length === 0)
    } finally {
      await worker.stop()
    }
    expect(await platform.sql('select count(*) from event')).toEqual([{ count: 60 }])
  })

  test('takes over work that a dead worker had leased', async () => {
    await deletedApp('left')
    expect(await leaseDue(platform.database.db, 1)).toHaveLength(1)
    // The lease expires after four seconds, and the worker polls once a second.
    const [{ seconds }] = await platform.sql(
      'select extract(epoch from leased_until - now())::float8 as seconds from work',
    )
    expect(seconds).toBeLessThanOrEqual(4)
    const worker = start()
    try {
      await until(async () => (await platform.sql(`select 1 from app where state = 'deleted'`)).length === 1)
    } finally {
      await worker.stop()
    }
  })

  test('reconnects after all its connections were terminated', async () => {
    const worker = start()
    try {
      await platform
        .sql(
          `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`,
        )
        .catch(() => {})
      await until(async () => (await platform.createApp('after')).status === 201)
      await until(async () => (await platform.call('DELETE', '/v1/apps/after')).status === 202)
      await until(async () => (await platform.sql(`select 1 from app where state <> 'deleted'`)).length === 0)
      expect(await platform.sql('select name, state from app')).toEqual([{ name: 'after', state: 'deleted' }])
    } finally {
      await worker.stop()
    }
  })
})
