import { beforeEach, describe, expect, test } from 'vitest'
import { breakable } from '../../support/breakable.ts'
import { type CallOptions, type Reply, usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake, callSandbox: call } = platform

const at = '/v1/sandboxes/box'
let id: string

beforeEach(make)

async function make(): Promise<void> {
  id = (await call('POST', '/v1/sandboxes', { body: { name: 'box' } })).body.id
}

/** Runs the background loop until the response is complete, because streams end when the loop has done its part. */
async function whileWorking<T>(answer: Promise<T>): Promise<T> {
  let isThere = false
  const ended = answer.finally(() => {
    isThere = true
  })
  while (!isThere) {
    await platform.sql('update work set run_at = now(), leased_until = null')
    await platform.turn().catch(() => undefined)
  }
  return ended
}

const stream = (path: string, options: CallOptions = {}) => whileWorking(call('POST', `${at}${path}`, options))
const checkpoint = (comment?: string) => stream('/checkpoint', { body: comment === undefined ? {} : { comment } })
const restore = (from: string) => stream(`/checkpoints/${from}/restore`)
const list = async (query = '') => (await call('GET', `${at}/checkpoints${query}`)).body
const ids = async (query = '') => (await list(query)).map((one: { id: string }) => one.id)
const events = (reply: Reply) =>
  reply.body
    .trim()
    .split('\n')
    .map((line: string) => JSON.parse(line))
const write = (word: string) => fake.layers.set(id, word)
const read = () => fake.layers.get(id)

describe('making a checkpoint', () => {
  test('streams lines that end with its id', async () => {
    write('one')
    const made = await checkpoint('before the change')
    expect(made).toMatchObject({ status: 200, headers: { 'content-type': 'application/x-ndjson' } })
    expect(events(made)).toEqual([
      { type: 'info', data: 'Creating checkpoint v1', time: expect.stringMatching(/Z$/) },
      { type: 'complete', data: 'Checkpoint v1 created', time: expect.stringMatching(/Z$/) },
    ])
    expect(fake.copies.get(`${id}/v1`)).toBe('one')
    expect(await list()).toEqual([
      {
        id: 'v1',
        create_time: expect.stringMatching(/Z$/),
        comment: 'before the change',
        history: [],
        is_auto: false,
        health: '',
      },
    ])
    expect((await call('GET', at)).body.status).toBe('running')
  })

  test('accepts a comment in the query, or none', async () => {
    await stream('/checkpoint?comment=from%20the%20query')
    await checkpoint()
    const [second, first] = await list()
    expect(first.comment).toBe('from the query')
    expect(second).not.toHaveProperty('comment')
  })

  test('numbers checkpoints in order and never reuses a number', async () => {
    for (let i = 0; i < 3; i++) await checkpoint()
    expect(await ids()).toEqual(['v3', 'v2', 'v1'])
    expect((await call('DELETE', `${at}/checkpoints/v3`)).status).toBe(204)
    await checkpoint()
    expect(await ids()).toEqual(['v4', 'v2', 'v1'])
    for (const automatic of ['auto-1', 'auto-2']) {
      await restore('v1')
      expect((await call('DELETE', `${at}/checkpoints/${automatic}`)).status).toBe(204)
    }
  })

  test('is done one at a time', async () => {
    const first = call('POST', `${at}/checkpoint`, { body: {} })
    await expect.poll(() => platform.sql('select 1 from checkpoint')).toHaveLength(1)
    for (const path of ['/checkpoint', '/checkpoints/v1/restore']) {
      expect((await call('POST', `${at}${path}`, { body: {} })).status).toBe(path === '/checkpoint' ? 409 : 404)
    }
    expect(await ids()).toEqual([])
    expect((await call('GET', `${at}/checkpoints/v1`)).status).toBe(404)
    expect(events(await whileWorking(first)).at(-1).type).toBe('complete')
    expect(await ids()).toEqual(['v1'])
  })

  test('reports a failure, leaves nothing behind and does not block the next one', async () => {
    fake.checkpointProblem = 'no space left on the disk'
    expect(events(await checkpoint()).at(-1)).toEqual({
      type: 'error',
      error: 'no space left on the disk',
      time: expect.any(String),
    })
    expect(await ids()).toEqual([])
    fake.checkpointProblem = undefined
    expect(events(await checkpoint()).at(-1).data).toBe('Checkpoint v2 created')
    expect(await platform.sql('select id from checkpoint')).toEqual([{ id: 'v2' }])
  })

  test('reports that the sandbox was deleted meanwhile', async () => {
    const made = call('POST', `${at}/checkpoint`, { body: {} })
    await expect.poll(() => platform.sql('select 1 from checkpoint')).toHaveLength(1)
    await call('DELETE', at)
    expect(events(await whileWorking(made)).at(-1)).toMatchObject({ type: 'error', error: 'the sandbox was deleted' })
    expect(fake.copies.size).toBe(0)
    expect(fake.boxesUp.size).toBe(0)
  })

  test('is limited in number', async () => {
    await platform.sql(
      `insert into checkpoint (sandbox_id, id, is_auto, comment, state)
       select $1, 'v' || n, false, '', 'ready' from generate_series(1, 100) n`,
      [id],
    )
    await platform.sql('update sandbox set checkpoints = 100')
    expect(await call('POST', `${at}/checkpoint`, { body: {} })).toMatchObject({
      status: 409,
      body: { error: 'conflict', message: expect.stringContaining('100') },
    })
    fake.copies.set(`${id}/v1`, 'one')
    expect(events(await restore('v1')).at(-1)).toMatchObject({ type: 'complete' })
  })

  test.each([[{ comment: 5 }], [{ comment: 'x'.repeat(1025) }]])('refuses %#', async (body) => {
    expect((await call('POST', `${at}/checkpoint`, { body })).status).toBe(400)
  })
})

describe('restoring', () => {
  test('restores the files, restarts the sandbox and keeps the former state', async () => {
    write('one')
    await checkpoint()
    write('two')
    const stops = fake.stops
    const restored = await restore('v1')
    expect(events(restored)).toEqual([
      { type: 'info', data: 'Restoring checkpoint v1', time: expect.any(String) },
      { type: 'info', data: 'The previous state is kept as auto-1', time: expect.any(String) },
      { type: 'complete', data: 'Restored to v1', time: expect.any(String) },
    ])
    expect(read()).toBe('one')
    expect(fake.stops).toBeGreaterThan(stops)
    expect(fake.boxesUp.get(id)).toBe(true)
    expect(await ids()).toEqual(['v1'])
    for (const yes of ['true', '1']) expect(await ids(`?includeAuto=${yes}`)).toEqual(['auto-1', 'v1'])
    expect((await call('GET', `${at}/checkpoints/auto-1`)).body).toMatchObject({ is_auto: true })
    await restore('auto-1')
    expect(read()).toBe('two')
  })

  test('records the source of each state', async () => {
    await checkpoint()
    await restore('v1')
    await checkpoint()
    await restore('v2')
    await checkpoint()
    const [v3, v2, v1] = await list()
    expect(v1).not.toHaveProperty('source_id')
    expect(v2).toMatchObject({ source_id: 'v1', history: ['v1'] })
    expect(v3).toMatchObject({ source_id: 'v2', history: ['v2', 'v1'] })
    expect((await call('GET', `${at}/checkpoints/Current`)).body).toMatchObject({
      id: 'Current',
      source_id: 'v2',
      history: ['v2', 'v1'],
    })
    expect(await ids('?history=v2')).toEqual(['v3', 'v2'])
    expect(await ids('?history=v1')).toEqual(['v3', 'v2', 'v1'])
    expect(await ids('?history=nothing')).toEqual([])
  })

  test('keeps the last five states that restores replaced', async () => {
    await checkpoint()
    for (let i = 0; i < 8; i++) await restore('v1')
    expect(await ids('?includeAuto=true')).toEqual(['auto-8', 'auto-7', 'auto-6', 'auto-5', 'auto-4', 'v1'])
    expect([...fake.copies.keys()].map((key) => key.split('/')[1]).sort()).toEqual([
      'auto-4',
      'auto-5',
      'auto-6',
      'auto-7',
      'auto-8',
      'v1',
    ])
  })

  test('can use the oldest of those, which stays while it is needed', async () => {
    await checkpoint()
    write('first')
    for (let i = 0; i < 5; i++) await restore('v1')
    expect(events(await restore('auto-1')).at(-1).type).toBe('complete')
    expect(read()).toBe('first')
  })

  test('leaves the sandbox unchanged when it fails', async () => {
    await checkpoint()
    write('two')
    fake.checkpointProblem = 'no space left on the disk'
    expect(events(await restore('v1')).at(-1)).toMatchObject({ type: 'error', error: 'no space left on the disk' })
    expect(read()).toBe('two')
    expect(fake.boxesUp.get(id)).toBe(true)
    fake.checkpointProblem = undefined
    expect(events(await restore('v1')).at(-1)).toMatchObject({ type: 'complete' })
  })

  test.each(['v9', 'v0', 'auto-1', 'x', '..%2f', '%00', 'v1%20'])(
    '%s, which does not exist, answers 404',
    async (one) => {
      await checkpoint()
      for (const [method, path] of [
        ['POST', `/checkpoints/${one}/restore`],
        ['GET', `/checkpoints/${one}`],
        ['DELETE', `/checkpoints/${one}`],
      ] as const) {
        expect(await call(method, `${at}${path}`)).toMatchObject({
          status: 404,
          body: { error: 'not_found', message: 'checkpoint not found' },
        })
      }
    },
  )
})

describe('deleting a checkpoint', () => {
  test('takes effect at once, and the loop removes the files', async () => {
    await checkpoint()
    await checkpoint()
    expect(await call('DELETE', `${at}/checkpoints/v1`)).toMatchObject({ status: 204, body: '' })
    expect(await ids()).toEqual(['v2'])
    expect((await call('DELETE', `${at}/checkpoints/v1`)).status).toBe(404)
    await platform.turn()
    expect([...fake.copies.keys()]).toEqual([`${id}/v2`])
    expect(await platform.sql('select id from checkpoint')).toEqual([{ id: 'v2' }])
  })

  test('is refused for the current state and during a restore from it', async () => {
    await checkpoint()
    for (const one of ['Current', 'active']) {
      expect((await call('DELETE', `${at}/checkpoints/${one}`)).status).toBe(409)
      expect((await call('POST', `${at}/checkpoints/${one}/restore`)).status).toBe(409)
    }
    const restored = call('POST', `${at}/checkpoints/v1/restore`)
    await expect.poll(() => platform.sql('select 1 from checkpoint where restores is not null')).toHaveLength(1)
    expect((await call('DELETE', `${at}/checkpoints/v1`)).status).toBe(409)
    await whileWorking(restored)
    expect((await call('DELETE', `${at}/checkpoints/v1`)).status).toBe(204)
  })
})

describe('when calls fail', () => {
  /** Counts the driver calls and SQL statements of the loop when nothing fails. */
  async function measure(change: () => Promise<unknown>): Promise<number> {
    fake.breakCall(0)
    const counting = breakable(platform.database.db, 0)
    platform.loopDb = counting.db
    await change()
    platform.loopDb = undefined
    return Math.max(fake.calls, counting.count())
  }

  async function startAfresh(): Promise<void> {
    platform.loopDb = undefined
    fake.reset()
    await platform.clear()
    await make()
  }

  function breakNth(nth: number): void {
    fake.breakCall(nth)
    platform.loopDb = breakable(platform.database.db, nth).db
  }

  test('a checkpoint is made once, whichever call or statement fails', async () => {
    await checkpoint()
    const most = await measure(checkpoint)
    for (let nth = 1; nth <= most; nth++) {
      await startAfresh()
      write('one')
      // The first call is made by the request, which starts the box.
      await call('POST', `${at}/restart`)
      const made = call('POST', `${at}/checkpoint`, { body: {} })
      await expect.poll(() => platform.sql('select 1 from checkpoint')).toHaveLength(1)
      breakNth(nth)
      expect(events(await whileWorking(made)).at(-1).data).toBe('Checkpoint v1 created')
      expect([...fake.copies]).toEqual([[`${id}/v1`, 'one']])
      expect(await ids()).toEqual(['v1'])
    }
  })

  test('a restore completes, whichever call or statement fails', async () => {
    await checkpoint()
    const most = await measure(() => restore('v1'))
    expect(most).toBeGreaterThan(5)
    for (let nth = 1; nth <= most; nth++) {
      await startAfresh()
      write('one')
      await checkpoint()
      write('two')
      breakNth(nth)
      expect(events(await restore('v1')).at(-1).data).toBe('Restored to v1')
      expect(read()).toBe('one')
      expect(fake.boxesUp.get(id)).toBe(true)
      expect(fake.copies.get(`${id}/auto-1`)).toBe('two')
      expect([...fake.copies.keys()].sort()).toEqual([`${id}/auto-1`, `${id}/v1`])
      expect(await platform.sql('select source_id from sandbox')).toEqual([{ source_id: 'v1' }])
    }
  })

  test('a sandbox that is deleted during any call of a restore leaves nothing behind', async () => {
    await checkpoint()
    const most = await measure(() => restore('v1'))
    for (let nth = 1; nth <= most; nth++) {
      await startAfresh()
      await checkpoint()
      fake.breakCall(0)
      fake.onCall = async (calls) => {
        if (calls === nth) expect((await call('DELETE', at)).status).toBe(204)
      }
      await restore('v1')
      fake.onCall = () => undefined
      if ((await call('GET', at)).status === 200) await call('DELETE', at)
      await platform.work()
      expect([fake.copies.size, fake.boxesUp.size]).toEqual([0, 0])
      expect(await platform.sql('select 1 from checkpoint')).toEqual([])
      expect(await platform.sql('select state from sandbox')).toEqual([{ state: 'deleted' }])
    }
  })
})
