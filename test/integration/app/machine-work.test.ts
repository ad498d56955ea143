import { beforeEach, describe, expect, test } from 'vitest'
import { breakable } from '../../support/breakable.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform
const machines = machinesOf(platform, 'shop')

beforeEach(async () => {
  await platform.createApp('shop')
})

const update = (id: string) => machines.call('POST', id, '', { body: { config: { image: 'caddy' } } })

/** Commands to a machine and the states that they lead to. */
const commands: Record<
  string,
  {
    prepare?: () => Promise<string>
    ask(id: string): Promise<unknown>
    ends: string
    up: boolean
    /** The step only records the observed state, so there is no driver call that could fail. */
    onlyRecords?: true
  }
> = {
  'the first start': {
    prepare: async () => (await machines.create({ skip_launch: true })).body.id,
    ask: (id) => machines.call('POST', id, '/start'),
    ends: 'started',
    up: true,
  },
  'the first start of containers': {
    prepare: async () => {
      const containers = [
        { name: 'web', image: 'nginx' },
        { name: 'db', image: 'redis' },
      ]
      return (await machines.create({ skip_launch: true }, { image: undefined, containers })).body.id
    },
    ask: (id) => machines.call('POST', id, '/start'),
    ends: 'started',
    up: true,
  },
  stop: { ask: (id) => machines.call('POST', id, '/stop'), ends: 'stopped', up: false },
  restart: { ask: (id) => machines.call('POST', id, '/restart'), ends: 'started', up: true },
  suspend: { ask: (id) => machines.call('POST', id, '/suspend'), ends: 'suspended', up: true },
  resume: {
    prepare: async () => {
      const id = await machines.started()
      await machines.call('POST', id, '/suspend')
      await machines.settle()
      return id
    },
    ask: (id) => machines.call('POST', id, '/start'),
    ends: 'started',
    up: true,
  },
  update: { ask: update, ends: 'started', up: true },
  'the exit of its program': {
    ask: async (id) => {
      fake.machines.end(id)
      await platform.sql(`update work set run_at = now() where kind = 'machine'`)
    },
    ends: 'stopped',
    up: false,
    onlyRecords: true,
  },
  deletion: { ask: (id) => machines.call('DELETE', id, '?force=true'), ends: 'destroyed', up: false },
}

async function begin(name: string): Promise<string> {
  const { prepare = () => machines.started(), ask } = commands[name]!
  const id = await prepare()
  await ask(id)
  return id
}

/** Runs steps until the machine has the expected state, even if some of them fail. */
async function converge(id: string, ends: string): Promise<void> {
  for (let tries = 0; tries < 20; tries++) {
    await machines.settle().catch(() => undefined)
    await machines.look().catch(() => undefined)
    if ((await machines.state(id)) === ends) return
  }
}

async function expectEnd(id: string, name: string): Promise<void> {
  const { ends, up } = commands[name]!
  expect(await machines.state(id)).toBe(ends)
  expect(fake.machines.machines.get(id)?.is === 'up').toBe(up)
  const changes = (await machines.events(id)).filter(
    (event) => !event.startsWith('exit') && !event.startsWith('restart starting'),
  )
  // Each change of state is recorded once: no two consecutive events are equal.
  expect(changes.filter((event, at) => event === changes[at - 1])).toEqual([])
  // A command ends the program once, however often its step is run.
  const exits = (await machines.events(id)).filter((event) => event.startsWith('exit'))
  expect(exits.length).toBeLessThanOrEqual(1)
}

describe.each(Object.keys(commands))('%s', (name) => {
  const { ends, onlyRecords = false } = commands[name]!

  test('converges although the reply of any one driver call is lost', async () => {
    await begin(name)
    fake.breakCall(0)
    await machines.settle()
    const { calls } = fake
    expect(calls > 0).toBe(!onlyRecords)
    for (let nth = 1; nth <= calls; nth++) {
      await platform.clear()
      fake.reset()
      await platform.createApp('shop')
      const id = await begin(name)
      fake.breakCall(nth)
      await converge(id, ends)
      await expectEnd(id, name)
    }
  })

  test('converges although the reply of any one statement is lost', async () => {
    await begin(name)
    const counting = breakable(platform.database.db, 0)
    platform.loopDb = counting.db
    await machines.settle()
    const calls = counting.count()
    expect(calls).toBeGreaterThan(5)
    for (let nth = 1; nth <= calls; nth++) {
      platform.loopDb = undefined
      await platform.clear()
      fake.reset()
      await platform.createApp('shop')
      const id = await begin(name)
      platform.loopDb = breakable(platform.database.db, nth).db
      await converge(id, ends)
      await expectEnd(id, name)
    }
  })
})

test('a hundred concurrent random commands end in a stable state that matches what runs', async () => {
  const id = await machines.started()
  const asks = [
    () => machines.call('POST', id, '/start'),
    () => machines.call('POST', id, '/stop'),
    () => machines.call('POST', id, '/restart'),
    () => machines.call('POST', id, '/suspend'),
    () => update(id),
  ]
  for (let round = 0; round < 20; round++) {
    const replies = await Promise.all([1, 2, 3, 4, 5].map((nth) => asks[(round * 7 + nth * 3) % asks.length]!()))
    for (const { status } of replies) expect([200, 412]).toContain(status)
    await platform.sql('update work set run_at = now(), leased_until = null')
    await platform.turn()
  }
  await machines.settle()
  await machines.look()
  const state = await machines.state(id)
  expect(['started', 'stopped', 'suspended']).toContain(state)
  const fakeMachine = fake.machines.machines.get(id)!
  expect(fakeMachine.is === 'up').toBe(state !== 'stopped')
  expect(fakeMachine.frozen).toBe(state === 'suspended')
})
