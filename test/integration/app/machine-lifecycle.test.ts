import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake, call } = platform
const machines = machinesOf(platform, 'shop')
const { create, started, settle, look, state, events } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('the lifecycle of a machine', () => {
  test('stop, start, restart', async () => {
    const id = await started()
    expect((await machines.call('POST', id, '/start')).body.previous_state).toBe('started')
    expect((await machines.call('POST', id, '/stop', { body: { signal: 'SIGTERM', timeout: '2s' } })).body).toEqual({
      ok: true,
    })
    await settle()
    expect(await state(id)).toBe('stopped')
    const [exit] = (await machines.call('GET', id)).body.events.filter(({ type }: { type: string }) => type === 'exit')
    expect(exit).toMatchObject({
      status: 'stopped',
      source: 'flyd',
      request: {
        exit_event: { exit_code: 130, requested_stop: true, restarting: false, oom_killed: false, guest_signal: 2 },
      },
    })
    expect(exit.request.MonitorEvent.exit_event).toEqual(exit.request.exit_event)
    expect((await machines.call('POST', id, '/stop')).status).toBe(200)
    expect(await machines.call('POST', id, '/restart')).toMatchObject({
      status: 412,
      body: { error: `failed_precondition: unable to restart machine from current state: 'stopped'` },
    })
    await machines.call('POST', id, '/start')
    await settle()
    expect(await state(id)).toBe('started')
    await machines.call('POST', id, '/restart?timeout=5')
    await settle()
    expect(await state(id)).toBe('started')
    expect(fake.machines.machines.get(id)!.starts).toBe(3)
    expect(await events(id)).toEqual([
      'launch created user',
      'start starting flyd',
      'start started flyd',
      'stop stopping user',
      'exit stopped flyd',
      'stop stopped flyd',
      'start starting user',
      'start started flyd',
      'restart restarting user',
      'exit stopped flyd',
      'start started flyd',
    ])
  })

  test('suspend and resume', async () => {
    const id = await started()
    await machines.call('POST', id, '/suspend')
    await settle()
    expect(await state(id)).toBe('suspended')
    expect(fake.machines.machines.get(id)!.frozen).toBe(true)
    await machines.call('POST', id, '/start')
    await settle()
    expect(fake.machines.machines.get(id)).toMatchObject({ frozen: false, starts: 1 })
    await machines.call('POST', id, '/suspend')
    await settle()
    await machines.call('POST', id, '/stop')
    await settle()
    expect(await state(id)).toBe('stopped')
  })

  test('a volume that was extended meanwhile grows at the next start, not when the machine resumes', async () => {
    const volume = (await call('POST', '/v1/apps/shop/volumes', { body: { name: 'data', size_gb: 3 } })).body.id
    await settle()
    const id = await started({}, { mounts: [{ volume, path: '/data' }] })
    await machines.call('POST', id, '/suspend')
    await settle()
    fake.disksGrowAtStart = true
    const body = { size_gb: 5 }
    expect((await call('PUT', `/v1/apps/shop/volumes/${volume}/extend`, { body })).status).toBe(200)
    await settle()
    fake.disksGrowAtStart = false
    await machines.call('POST', id, '/start')
    await settle()
    expect([await state(id), fake.disks.get(volume)]).toEqual(['started', 3])
    await machines.call('POST', id, '/stop')
    await settle()
    await machines.call('POST', id, '/start')
    await settle()
    expect([await state(id), fake.disks.get(volume)]).toEqual(['started', 5])
  })

  test('is stopped instead of suspended on hosts without a freezer', async () => {
    const id = await started({}, { stop_config: { signal: 'SIGQUIT', timeout: '9s' } })
    fake.machines.freezes = false
    fake.machines.stopsSlowly = true
    await machines.call('POST', id, '/suspend')
    expect((await platform.turn())?.result).toBe('wait')
    fake.machines.stopsSlowly = false
    await settle()
    expect(fake.machines.lastStop).toEqual({ signal: 'SIGQUIT', timeoutMs: 9000 })
    expect(await state(id)).toBe('stopped')
    expect((await events(id)).slice(-3)).toEqual(['suspend suspending user', 'exit stopped flyd', 'stop stopped flyd'])
  })

  test('suspending a machine whose program exits or waits for a restart stops it', async () => {
    for (const is of ['down', 'waiting'] as const) {
      const id = await started()
      await machines.call('POST', id, '/suspend')
      fake.machines.end(id, { exitCode: 1 })
      fake.machines.machines.get(id)!.is = is
      await settle()
      expect(await state(id)).toBe('stopped')
      expect(fake.machines.machines.get(id)!.is).toBe('down')
    }
  })

  test('an update replaces a running program and does not start a stopped one', async () => {
    const id = await started()
    const before = (await machines.call('GET', id)).body
    const update = (extra: object = {}) =>
      machines.call('POST', id, '', { body: { config: { image: 'caddy', env: { N: '2' } }, ...extra } })
    expect(await update({ current_version: 'other' })).toMatchObject({
      status: 409,
      body: { error: 'aborted: machine update failed due to concurrent update' },
    })
    expect((await update({ name: 'other' })).status).toBe(400)
    expect((await update({ region: 'fra' })).status).toBe(400)
    const made = await update({ current_version: before.instance_id, name: before.name, region: before.region })
    expect(made.body).toMatchObject({ state: 'replacing', config: { image: 'caddy' } })
    expect(made.body.instance_id > before.instance_id).toBe(true)
    expect((await machines.call('POST', id, '/start')).status).toBe(412)
    await settle()
    expect(fake.machines.machines.get(id)!.spec).toMatchObject({ instanceId: made.body.instance_id, env: { N: '2' } })
    expect((await machines.call('GET', id, '/versions')).body).toEqual([
      { version: made.body.instance_id, user_config: made.body.config },
      { version: before.instance_id, user_config: before.config },
    ])
    await machines.call('POST', id, '/stop')
    await settle()
    await update()
    await settle()
    expect(await state(id)).toBe('stopped')
    expect(fake.machines.machines.get(id)!.is).toBe('down')
    const room = { config: { image: 'caddy', guest: { cpu_kind: 'performance', cpus: 16, memory_mb: 131_072 } } }
    expect(await machines.call('POST', id, '', { body: room })).toMatchObject({
      status: 409,
      body: { error: expect.stringContaining('could not reserve resource') },
    })
  })

  test('an update stops the program with the options of its own version', async () => {
    const id = await started({}, { stop_config: { signal: 'SIGQUIT', timeout: '9s' } })
    await machines.call('POST', id, '/restart?force_stop=true')
    await settle()
    expect(fake.machines.lastStop).toEqual({ signal: 'SIGKILL', timeoutMs: 0 })
    await machines.call('POST', id, '', { body: { config: { image: 'web' } } })
    await settle()
    expect(fake.machines.lastStop).toEqual({ signal: 'SIGQUIT', timeoutMs: 9000 })
  })

  test('of concurrent updates of one version only one succeeds', async () => {
    const id = await started()
    const { version } = (await machines.call('GET', id)).body
    const body = { config: { image: 'caddy' }, current_version: version }
    const replies = await Promise.all(Array.from({ length: 10 }, () => machines.call('POST', id, '', { body })))
    expect(replies.map(({ status }) => status).sort()).toEqual([200, ...Array(9).fill(409)])
    await settle()
    expect((await machines.call('GET', id, '/versions')).body).toHaveLength(2)
  })

  test('an update to a missing image stops the machine and reports why', async () => {
    const id = await started()
    fake.images.available = new Set()
    await machines.call('POST', id, '', { body: { config: { image: 'gone' } } })
    await settle()
    expect((await machines.call('GET', id)).body).toMatchObject({
      state: 'failed',
      failure: expect.stringContaining('no image'),
    })
    expect(fake.machines.machines.get(id)!.is).toBe('down')
    fake.images.available = null
    await machines.call('POST', id, '', { body: { config: { image: 'nginx' } } })
    await settle()
    expect((await machines.call('GET', id)).body).toMatchObject({ state: 'started' })
  })

  test('a running machine is destroyed only by force, and stays visible for a while', async () => {
    const id = await started()
    expect(await machines.call('DELETE', id)).toMatchObject({
      status: 412,
      body: { error: expect.stringContaining('force=true') },
    })
    expect((await machines.call('DELETE', id, '?kill=true')).body).toEqual({ ok: true })
    expect((await machines.call('POST', id, '/start')).status).toBe(412)
    await settle()
    expect(await machines.call('GET', id)).toMatchObject({ status: 200, body: { state: 'destroyed', private_ip: '' } })
    expect((await machines.call('DELETE', id)).status).toBe(200)
    expect((await machines.call('POST', id, '', { body: { config: { image: 'nginx' } } })).status).toBe(404)
    expect((await call('GET', '/v1/apps/shop')).body).toMatchObject({ machine_count: 0, status: 'pending' })
    await platform.sql(`update machine set destroyed_at = now() - interval '2 hours'`)
    const { tidyMachines } = await import('../../../src/reconcile/app/machine-watch.ts')
    await tidyMachines(fake.world(platform.database.db))
    expect(await machines.call('GET', id)).toMatchObject({ status: 404, body: { error: 'machine not found' } })
  })

  test('exits of its program become events, and the policy decides the state', async () => {
    const done = await started({}, { restart: { policy: 'no' } })
    fake.machines.end(done, { exitCode: 3 })
    await look()
    expect(await state(done)).toBe('stopped')
    const again = await started({}, { restart: { policy: 'always' } })
    fake.machines.end(again, { exitCode: 1, restarting: true })
    fake.machines.end(again, { exitCode: 1, restarting: true })
    await look()
    expect(await state(again)).toBe('started')
    expect((await events(again)).slice(-4)).toEqual([
      'exit stopped flyd',
      'restart starting flyd',
      'exit stopped flyd',
      'restart starting flyd',
    ])
    await look()
    expect(await platform.sql('select restart_count from machine where id = $1', [again])).toEqual([
      { restart_count: 2 },
    ])
    const twice = await started()
    fake.machines.end(twice, { requested: true })
    fake.machines.end(twice, { exitCode: 1 })
    await look()
    expect((await events(twice)).slice(-4)).toEqual([
      'exit stopped flyd',
      'start started flyd',
      'exit stopped flyd',
      'stop stopped flyd',
    ])
    const failing = await started({}, { restart: { policy: 'on-failure', max_retries: 1 } })
    fake.machines.end(failing, { exitCode: 1, restarting: true })
    fake.machines.end(failing, { exitCode: 137, signal: 9, oomKilled: true })
    await look()
    expect((await machines.call('GET', failing)).body).toMatchObject({
      state: 'stopped',
      failure: expect.stringContaining('memory'),
    })
    expect((await events(failing)).at(-1)).toBe('stop stopped flyd')
    const well = await started({}, { restart: { policy: 'on-failure' } })
    fake.machines.end(well)
    await look()
    expect(await state(well)).toBe('stopped')
    const once = await started({}, { auto_destroy: true, restart: { policy: 'no' } })
    fake.machines.end(once, { exitCode: 1 })
    await look()
    expect(await state(once)).toBe('destroyed')
    expect((await events(once)).slice(-3)).toEqual([
      'exit stopped flyd',
      'destroy destroying flyd',
      'destroy destroyed flyd',
    ])
  })

  test('one that disappeared without an exit, as in a reboot, is restarted', async () => {
    const id = await started()
    fake.machines.machines.delete(id)
    await look()
    expect(fake.machines.machines.get(id)).toMatchObject({ is: 'up' })
    expect(await state(id)).toBe('started')
  })

  test('one that cannot be restarted fails, and can be stopped, restarted or started', async () => {
    for (const [word, then] of [
      ['stop', 'stopped'],
      ['restart', 'started'],
      ['start', 'started'],
    ] as const) {
      const id = await started()
      fake.machines.machines.delete(id)
      fake.images.config = { cmd: [] }
      fake.images.pulled.clear()
      await look()
      expect((await machines.call('GET', id)).body).toMatchObject({
        state: 'failed',
        failure: expect.stringContaining('names no program'),
      })
      fake.images.config = {}
      fake.images.pulled.clear()
      expect((await machines.call('POST', id, `/${word}`)).status).toBe(200)
      await settle()
      expect(await state(id)).toBe(then)
      await machines.call('DELETE', id, '?force=true')
      await settle()
    }
  })

  test('a slow stop does not block the loop or a deletion', async () => {
    const id = await started()
    fake.machines.stopsSlowly = true
    await machines.call('POST', id, '/stop')
    expect((await platform.turn())?.result).toBe('wait')
    await machines.call('DELETE', id, '?force=true')
    await settle()
    expect(await state(id)).toBe('destroyed')
    fake.machines.stopsSlowly = false
  })

  test('its step does not deadlock with a step of its app', async () => {
    const { lockState } = await import('../../../src/store/transition.ts')
    const id = await started()
    const [{ app_id: app }] = await platform.sql('select app_id from machine where id = $1', [id])
    await platform.database.db.transaction(async (tx) => {
      await lockState(tx, 'app', app)
      await platform.database.db.transaction(async (other) => {
        await other.query(`set local lock_timeout = '5s'`)
        await lockState(other, 'machine', id)
        // The second update of a row in one transaction checks the foreign key to its app again.
        for (let times = 0; times < 2; times++)
          await other.query('update machine set wanted = true where id = $1', [id])
      })
    })
    expect(await platform.sql('select wanted from machine where id = $1', [id])).toEqual([{ wanted: true }])
  })

  test('is started by its schedule', async () => {
    const { startScheduled } = await import('../../../src/store/app/machine-schedule.ts')
    const id = await started({}, { schedule: 'hourly', restart: { policy: 'no' } })
    const running = await started({}, { schedule: 'daily' })
    fake.machines.end(id)
    await look()
    expect(await state(id)).toBe('stopped')
    await platform.sql('update machine set next_start_at = now()')
    await platform.database.db.transaction(startScheduled)
    expect(await platform.sql('select id from machine where next_start_at > now()')).toHaveLength(2)
    await settle()
    expect([await state(id), await state(running)]).toEqual(['started', 'started'])
    expect(fake.machines.machines.get(running)!.starts).toBe(1)
  })

  test('an update adds or removes a schedule, and does not reset an unchanged one', async () => {
    const id = await started()
    const update = async (schedule?: string) => {
      const config = { image: 'nginx', ...(schedule && { schedule }) }
      expect((await machines.call('POST', id, '', { body: { config } })).status).toBe(200)
      await settle()
      const [row] = await platform.sql(
        'select extract(epoch from next_start_at - now())::float8 as seconds from machine where id = $1',
        [id],
      )
      return row.seconds
    }
    expect(await update('hourly')).toBeGreaterThan(3500)
    await platform.sql(`update machine set next_start_at = now() + interval '10 minutes'`)
    expect(await update('hourly')).toBeLessThan(601)
    expect(await update('weekly')).toBeGreaterThan(6 * 86_400)
    expect(await update()).toBeNull()
  })

  test('a standby is not launched, and is started when the other machine fails', async () => {
    const { startScheduled } = await import('../../../src/store/app/machine-schedule.ts')
    const first = await started()
    const bystander = (await create({}, { standbys: ['00000000000000'] })).body.id
    const standby = (await create({}, { standbys: [first] })).body.id
    const wake = async () => {
      await platform.database.db.transaction(startScheduled)
      await settle()
      return Promise.all([first, standby, bystander].map(state))
    }
    expect(await wake()).toEqual(['started', 'stopped', 'stopped'])
    fake.machines.end(first, { exitCode: 1 })
    await look()
    expect(await wake()).toEqual(['stopped', 'started', 'stopped'])
    // A machine that was stopped or exited with 0 is not replaced by a standby.
    await machines.call('POST', standby, '/stop')
    await machines.call('POST', first, '/start')
    await settle()
    await machines.call('POST', first, '/stop')
    await settle()
    expect(await wake()).toEqual(['stopped', 'stopped', 'stopped'])
    fake.images.available = new Set()
    await machines.call('POST', first, '', { body: { config: { image: 'gone' } } })
    await settle()
    await machines.call('POST', first, '/start')
    await settle()
    fake.images.available = null
    expect(await wake()).toEqual(['failed', 'started', 'stopped'])
  })

  test('a failed machine is started again by its schedule', async () => {
    const { startScheduled } = await import('../../../src/store/app/machine-schedule.ts')
    const id = await started({}, { schedule: 'hourly' })
    fake.images.available = new Set()
    await machines.call('POST', id, '', { body: { config: { image: 'gone', schedule: 'hourly' } } })
    await settle()
    expect(await state(id)).toBe('failed')
    fake.images.available = null
    await platform.sql('update machine set next_start_at = now()')
    await platform.database.db.transaction(startScheduled)
    await settle()
    expect(await state(id)).toBe('started')
  })

  test('deleting the app removes its machines before their rows', async () => {
    const id = await started()
    await create({ skip_launch: true })
    expect((await call('DELETE', '/v1/apps/shop')).status).toBe(422)
    expect((await call('DELETE', '/v1/apps/shop?force=true')).status).toBe(202)
    expect(await machines.call('GET', id)).toMatchObject({ status: 404, body: { error: 'app not found' } })
    await settle()
    expect(fake.machines.machines.size).toBe(0)
    expect(
      await platform.sql('select 1 from machine union all select 1 from box_slot union all select 1 from work'),
    ).toEqual([])
  })

  test('unused images are removed, those of machines stay', async () => {
    const { collectImages } = await import('../../../src/reconcile/app/image-collection.ts')
    await started()
    const gone = await started({}, { image: 'caddy' })
    await machines.call('DELETE', gone, '?force=1')
    await settle()
    await collectImages(fake.world(platform.database.db))
    expect([...fake.images.pulled.keys()]).toHaveLength(1)
  })
})
