// What the API tells of the program of a machine that runs.
import { beforeEach, describe, expect, test } from 'vitest'
import { migrate } from '../../../src/store/migrate.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform
const machines = machinesOf(platform, 'shop')
const { started, call, look } = machines
const show = async (id: string) => (await call('GET', id)).body

beforeEach(() => platform.createApp('shop'))

describe('a program that crashes in a loop', () => {
  const crash = { exitCode: 3, restarting: true, restartSeconds: 60 }

  test('is shown with its restarts, its last exit and the time of the next start', async () => {
    const id = await started()
    expect(await show(id)).toMatchObject({ state: 'started', restart_count: 0 })
    fake.machines.end(id, { ...crash, restartSeconds: 1 })
    fake.machines.end(id, crash)
    await look()
    const seen = await show(id)
    expect(seen).toMatchObject({ state: 'started', restart_count: 2, last_exit: { exit_code: 3, restarting: true } })
    const pauseMs = Date.parse(seen.next_restart_at) - Date.parse(seen.last_exit.exited_at)
    expect(pauseMs).toBe(60_000)
    const [listed] = (await platform.call('GET', `${machines.path}?summary=true`)).body
    expect(listed).toMatchObject({ restart_count: 2, next_restart_at: seen.next_restart_at })
  })

  test('is no longer waiting once the time of the next start has passed', async () => {
    const id = await started()
    fake.machines.end(id, { ...crash, restartSeconds: 0 })
    await look()
    const seen = await show(id)
    expect(seen.last_exit.exit_code).toBe(3)
    expect(seen).not.toHaveProperty('next_restart_at')
  })

  test('keeps its last exit when it is given up, until it is started again', async () => {
    const id = await started()
    fake.machines.end(id, crash)
    await look()
    fake.machines.end(id, { exitCode: 4 })
    await look()
    const given = await show(id)
    expect(given).toMatchObject({ state: 'stopped', last_exit: { exit_code: 4 } })
    expect(given).not.toHaveProperty('next_restart_at')
    await call('POST', id, '/start')
    await machines.settle()
    const again = await show(id)
    expect(again).toMatchObject({ state: 'started', restart_count: 0 })
    expect(again).not.toHaveProperty('last_exit')
  })
})

describe('a service on whose port nothing listens', () => {
  const services = [{ internal_port: 8080, ports: [{ port: 80, handlers: ['http'] }] }]
  const warningEvents = async (id: string) => (await machines.events(id)).filter((event) => event.startsWith('warning'))

  test('is reported in warnings, an event and the log, when the program had time to start', async () => {
    fake.machines.listening = [{ proto: 'tcp', address: '0.0.0.0:80' }]
    const id = await started({}, { services })
    await look()
    expect(await show(id)).not.toHaveProperty('warnings')
    fake.machines.machines.get(id)!.since -= 10_000
    await look()
    await look()
    const [warning] = (await show(id)).warnings
    expect(warning).toMatch(/^nothing listens on tcp port 8080/)
    expect(await warningEvents(id)).toEqual(['warning started flyd'])
    expect(fake.machines.machines.get(id)!.log.map(({ text }) => text)).toEqual([`warning: ${warning}`])
  })

  test('is no longer reported when the port is opened later', async () => {
    fake.machines.listening = []
    const id = await started({}, { services })
    fake.machines.machines.get(id)!.since -= 10_000
    await look()
    fake.machines.listening = [{ proto: 'tcp6', address: '[::]:8080' }]
    await look()
    expect((await show(id)).warnings).toEqual([])
  })

  test('is looked for again after a new start', async () => {
    fake.machines.listening = [{ proto: 'tcp', address: '0.0.0.0:8080' }]
    const id = await started({}, { services })
    await look()
    expect((await show(id)).warnings).toEqual([])
    await call('POST', id, '/stop')
    await machines.settle()
    expect(await show(id)).not.toHaveProperty('warnings')
  })

  test('is not reported for a machine without services', async () => {
    fake.machines.listening = []
    const id = await started()
    fake.machines.machines.get(id)!.since -= 10_000
    await look()
    expect(await show(id)).not.toHaveProperty('warnings')
  })
})

test('the log of a machine that destroyed itself can be read by its id', async () => {
  const id = await started({}, { auto_destroy: true, restart: { policy: 'no' } })
  fake.machines.machines.get(id)!.log.push({ at: 1, stream: 'stderr', text: 'no settings' })
  fake.machines.end(id, { exitCode: 3 })
  await look()
  expect(await show(id)).toMatchObject({ state: 'destroyed', last_exit: { exit_code: 3 } })
  const { body } = await call('GET', id, '/logs')
  expect(JSON.stringify(body)).toContain('no settings')
  const page = (query: string) => platform.call('GET', `/api/v1/apps/shop/logs${query}`)
  expect(JSON.stringify((await page(`?instance=${id}`)).body)).toContain('no settings')
  expect(JSON.stringify((await page('')).body)).not.toContain('no settings')
})

test('options of resolv.conf that were stored as text become objects', async () => {
  const sql = platform.sql
  const id = await started({}, { dns: { options: ['edns0'], searches: ['a.internal'] } })
  const dns = { searches: ['a.internal'], options: ['ndots:2', 'rotate'] }
  for (const table of ['machine', 'machine_version'])
    await sql(`update ${table} set config = jsonb_set(config, '{dns}', $1)`, [JSON.stringify(dns)])
  await sql('alter table machine drop column last_exit, drop column next_restart_at, drop column warnings')
  await sql(`delete from migration where name = '0015_machine_report.sql'`)
  expect(await migrate(platform.database.db)).toContain('0015_machine_report.sql')
  const options = [{ name: 'ndots', value: '2' }, { name: 'rotate' }]
  expect((await show(id)).config.dns).toEqual({ searches: ['a.internal'], options })
  expect((await call('GET', id, '/versions')).body[0].user_config.dns.options).toEqual(options)
})
