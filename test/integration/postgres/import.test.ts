import { beforeEach, describe, expect, test } from 'vitest'
import { SourceError } from '../../../src/drivers/postgres/import/driver.ts'
import { type CallOptions, usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform

const url = 'postgresql://owner:secret@db.example.com:6543/shop?sslmode=require'
let cluster: string

beforeEach(async () => {
  const made = await platform.call('POST', '/v1/postgres', {
    body: { org_slug: 'personal', plan: 'basic', name: 'shop' },
  })
  cluster = made.body.data.id
  await platform.workUntil('cluster', 'ready')
})

const path = () => `/v1/postgres/${cluster}/import`
const start = (body: object = {}, options: CallOptions = {}) =>
  platform.call('POST', path(), { body: { url, ...body }, ...options })
const show = async () => (await platform.call('GET', path())).body.data

/** Runs one step of an import or of a cluster. */
async function turn(only = `kind = 'import'`): Promise<void> {
  await platform.sql(
    `update work set leased_until = null,
       run_at = case when ${only} then now() - random() * interval '1 second' else 'infinity' end`,
  )
  await platform.turn()
}

async function turnUntil(...states: string[]): Promise<void> {
  for (let i = 0; i < 200; i++) {
    if (states.includes((await show()).status)) return
    await turn()
  }
  throw new Error(`not ${states} after 200 turns: ${JSON.stringify(await show())}`)
}

const ended = ['done', 'failed', 'canceled']

/** Lets the time since the last change of state pass. */
const pass = (seconds: number) =>
  platform.sql(`update import set state_since = state_since - $1 * interval '1 second'`, [seconds])

function expectNothingLeft(): void {
  for (const left of [
    fake.forwarders,
    fake.dumpJobs,
    fake.restoreJobs,
    fake.importCopies,
    fake.subscriptions,
    fake.sourceSlots,
  ])
    expect([...left]).toEqual([])
}

async function expectForgotten(): Promise<void> {
  expect(await platform.sql('select source from import')).toEqual([{ source: null }])
  expect(await platform.sql(`select 1 from work where kind = 'import'`)).toEqual([])
}

describe('a request', () => {
  test('starts an import, and shows it without the password', async () => {
    const reply = await start({ jobs: 2 })
    expect(reply.status).toBe(202)
    expect(reply.body.data).toEqual({
      id: expect.stringMatching(/^[a-z0-9]{16}$/),
      status: 'checking',
      source: 'postgresql://owner@db.example.com:6543/shop',
      database: 'fly-db',
      live: false,
      jobs: 2,
      tables_done: 0,
      tables_total: null,
      bytes_done: 0,
      bytes_total: null,
      current_table: null,
      lag_bytes: null,
      lag_seconds: null,
      warnings: [],
      created_at: expect.any(String),
      finished_at: null,
    })
    expect(JSON.stringify(await platform.sql('select encode(source, $1) from import', ['escape']))).not.toContain(
      'secret',
    )
  })

  test.each([
    [{ url: 'http://db.example.com/shop' }, 'url must look like postgresql://user:password@host:5432/database'],
    [{ url: 7 }, 'url must be a string'],
    [{ url: 'postgresql://db.example.com/shop' }, 'the user in url is not valid: a name cannot be empty'],
    [{ url: 'postgresql://a:b@db.example.com/' }, 'the database in url is not valid: a name cannot be empty'],
    [{ url: 'postgresql://a:b%0ac@db.example.com/x' }, 'the password in url cannot contain control characters'],
    [
      { url: 'postgresql://a:b@db.example.com/x?sslmode=maybe' },
      'sslmode must be one of disable, prefer, require, verify-ca, verify-full',
    ],
    [
      { url: 'postgresql://a:b@db.example.com/x?sslmode=require&sslcert=/etc/client.crt' },
      'imports cannot present a client certificate: the user in url has to log in with a password only',
    ],
    [{ url: 'postgresql://a:b@db.example.com/x?host=/run' }, 'url has the parameter host; only sslmode is supported'],
    [{ url: 'postgresql://a:b@one,two/x' }, 'url must name a single host'],
    [{ jobs: 0 }, 'jobs must be a number from 1 to 8'],
    [{ jobs: 9 }, 'jobs must be a number from 1 to 8'],
    [{ live: 'yes' }, 'live must be true or false'],
    [{ database: 'postgres' }, 'database postgres is reserved'],
    [{ database: 'berth_import' }, 'database berth_import is reserved'],
    [{ database: '' }, 'database must be 1 to 63 characters, and not "." or ".."'],
  ])('with %j is refused', async (body, error) => {
    expect(await start(body)).toMatchObject({ status: 422, body: { error } })
  })

  test('is refused while another import runs, and without one there is nothing to show or to change', async () => {
    for (const [method, at] of [
      ['DELETE', ''],
      ['POST', '/cutover'],
    ] as const)
      expect(await platform.call(method, path() + at)).toMatchObject({
        status: 404,
        body: { error: 'Nothing was imported into this cluster' },
      })
    expect(await platform.call('GET', path())).toMatchObject({ status: 200, body: { data: null } })
    await start()
    expect(await start()).toMatchObject({ status: 409, body: { error: 'an import is already in progress' } })
  })

  test('of a stranger or a reader is refused', async () => {
    await platform.createOrg('other')
    const stranger = await platform.createToken('org', 'other')
    const reader = await platform.createToken('read', 'personal')
    expect((await start({}, { token: stranger })).status).toBe(404)
    expect((await start({}, { token: reader })).status).toBe(401)
    await start({ live: true })
    for (const [method, at] of [
      ['DELETE', ''],
      ['POST', '/cutover'],
    ] as const) {
      expect((await platform.call(method, path() + at, { token: stranger })).status).toBe(404)
      expect((await platform.call(method, path() + at, { token: reader })).status).toBe(401)
    }
    expect((await platform.call('GET', path(), { token: stranger })).status).toBe(404)
    expect((await platform.call('GET', path(), { token: reader })).status).toBe(200)
  })
})

describe('an import', () => {
  test('dumps, restores, replaces the database and forgets the password', async () => {
    fake.sourceFacts = { warnings: ['event triggers are not copied: watch'] }
    await start()
    await turnUntil('dumping')
    expect(fake.forwarders.get(cluster)).toMatchObject({
      addresses: ['192.0.2.1'],
      source: {
        host: 'db.example.com',
        port: 6543,
        user: 'owner',
        password: 'secret',
        database: 'shop',
        sslMode: 'require',
      },
    })
    fake.dumpSeen = { is: 'running', tablesDone: 1, tableName: 'public.orders', bytesDone: 77 }
    await turn()
    expect(await show()).toMatchObject({
      tables_done: 1,
      tables_total: 3,
      bytes_done: 77,
      bytes_total: 1000,
      current_table: 'public.orders',
    })
    fake.dumpSeen = undefined
    await turnUntil('restoring')
    expect(await show()).toMatchObject({ tables_done: 0, bytes_done: 0 })
    await turnUntil(...ended)
    expect(await show()).toMatchObject({
      status: 'done',
      tables_done: 3,
      warnings: ['event triggers are not copied: watch'],
      finished_at: expect.any(String),
    })
    expect(fake.replaced).toEqual(['fly-db'])
    expectNothingLeft()
    await expectForgotten()
    expect((await platform.call('DELETE', path())).status).toBe(409)
    expect((await start()).status).toBe(202)
  })

  test.each<[string, () => void, string]>([
    [
      'a source that cannot be resolved',
      () => (fake.resolveProblem = new SourceError('the source cannot be reached', false)),
      'the source cannot be reached',
    ],
    [
      'a refused password',
      () => (fake.sourceProblem = new SourceError('password authentication failed', false)),
      'password authentication failed',
    ],
    [
      'a target that is not empty',
      () => (fake.targetProblem = 'database fly-db is not empty'),
      'database fly-db is not empty',
    ],
    [
      'a newer source',
      () => (fake.sourceFacts = { problems: ['the source runs PostgreSQL 18', 'and more'] }),
      'the source runs PostgreSQL 18; and more',
    ],
    [
      'a missing extension',
      () => (fake.sourceFacts = { extensions: [{ name: 'vector', schema: 'public' }] }),
      'the source uses the extension vector, which this cluster does not have',
    ],
    [
      'a source larger than the disk',
      () => (fake.sourceFacts = { bytes: 10 ** 10 }),
      'the source is too large for the disk of 10 GB; use a cluster with a larger disk',
    ],
    [
      'a failed dump',
      () => (fake.dumpSeen = { is: 'failed', reason: 'the dump failed: permission denied' }),
      'the dump failed: permission denied',
    ],
    [
      'a dump that fills the disk',
      () => (fake.dumpSeen = { is: 'running', tablesDone: 0, tableName: null, bytesDone: 10 ** 10 }),
      'the source is too large for the disk of 10 GB; use a cluster with a larger disk',
    ],
    [
      'a failed restore',
      () => (fake.restoreSeen = { is: 'failed', reason: 'the copy differs from the source' }),
      'the copy differs from the source',
    ],
  ])('fails because of %s, with the reason', async (_, prepare, failure) => {
    prepare()
    await start()
    await turnUntil(...ended)
    expect(await show()).toMatchObject({ status: 'failed', failure })
    expect(fake.replaced).toEqual([])
    expectNothingLeft()
    await expectForgotten()
  })

  test('fails if someone has filled the target meanwhile', async () => {
    await start()
    await turnUntil('finishing')
    fake.targetProblem = 'database fly-db is not empty'
    await turnUntil(...ended)
    expect(await show()).toMatchObject({ status: 'failed', failure: 'database fly-db is not empty' })
    expectNothingLeft()
  })

  test('tries a source that does not answer a few times', async () => {
    fake.sourceProblem = new SourceError('the source cannot be reached', true)
    await start()
    await turn()
    expect(await show()).toMatchObject({ status: 'checking', progress: 'the source cannot be reached' })
    await pass(10)
    await turnUntil(...ended)
    expect(await show()).toMatchObject({ status: 'failed', failure: 'the source cannot be reached' })
  })

  test.each(['dumping', 'restoring', 'live', 'cutover'])('ends with its cluster, while it is %s', async (state) => {
    fake.liveSeen = { is: 'running', lagBytes: 5, lagSeconds: 0, errors: 0, transaction: null }
    await start({ live: true })
    await turnUntil(state === 'cutover' ? 'live' : state)
    if (state === 'cutover') await platform.call('POST', `${path()}/cutover`)
    await platform.call('DELETE', `/v1/postgres/${cluster}`)
    for (let i = 0; i < 50; i++) await turn('true')
    expect(await platform.sql('select state, failure from import')).toEqual([
      { state: 'failed', failure: 'the cluster is deleting' },
    ])
    expect(await platform.sql('select state from cluster')).toEqual([{ state: 'deleted' }])
    expectNothingLeft()
    await expectForgotten()
  })

  test('is repeated after each driver call whose reply was lost, and ends the same', async () => {
    for (const live of [false, true]) {
      for (let nth = 1; ; nth++) {
        fake.breakCall(nth)
        await start({ live })
        if (live) {
          await turnUntil('live', ...ended)
          await platform.call('POST', `${path()}/cutover`)
        }
        await turnUntil(...ended)
        expect(await show(), `call ${nth}`).toMatchObject({ status: 'done', live })
        expectNothingLeft()
        expect(fake.replaced).toEqual(['fly-db'])
        fake.replaced.length = 0
        await platform.sql('delete from import')
        if (fake.calls < nth) break
      }
    }
  }, 120_000)
})

describe('a canceled import', () => {
  test.each(['checking', 'dumping', 'restoring', 'live', 'cutover'])(
    'leaves nothing behind, while it is %s',
    async (state) => {
      fake.liveSeen = { is: 'running', lagBytes: 5, lagSeconds: 0, errors: 0, transaction: null }
      const last = state === 'cutover' ? 'live' : state
      for (let nth = 0; ; nth++) {
        await start({ live: true })
        await turnUntil(last)
        if (state === 'cutover') await platform.call('POST', `${path()}/cutover`)
        await turn()
        if (ended.includes((await show()).status)) throw new Error('it is over')
        const canceled = await platform.call('DELETE', path())
        expect(canceled).toMatchObject({ status: 202, body: { data: { status: 'canceling' } } })
        expect((await platform.call('DELETE', path())).status).toBe(202)
        fake.breakCall(nth)
        await turnUntil(...ended)
        expect(await show()).toMatchObject({ status: 'canceled', warnings: [] })
        expect((await show()).failure).toBeUndefined()
        expectNothingLeft()
        expect(fake.replaced).toEqual([])
        await expectForgotten()
        await platform.sql('delete from import')
        if (fake.calls < nth) break
      }
    },
  )

  test('says how to drop a slot at a source that does not answer', async () => {
    await start({ live: true })
    await turnUntil('live')
    fake.sourceProblem = new SourceError('the source cannot be reached', true)
    const { id } = await show()
    await platform.call('DELETE', path())
    await turn()
    expect(await show()).toMatchObject({
      status: 'canceling',
      progress: 'the replication slot could not be dropped: the source cannot be reached',
    })
    await pass(61)
    await turnUntil(...ended)
    expect((await show()).warnings).toEqual([
      `the replication slot could not be dropped: the source cannot be reached; run at the source: select pg_drop_replication_slot('berth_import_${id}'); drop publication if exists berth_import_${id}`,
    ])
  })
})

describe('a live import', () => {
  const lag = (lagBytes: number, transaction: string | null = null) => {
    fake.liveSeen = { is: 'running', lagBytes, lagSeconds: lagBytes / 10, errors: 0, transaction }
  }

  test('lets the server subscribe before it restores, shows its lag and cuts over when the source is quiet', async () => {
    fake.subscribing = false
    await start({ live: true })
    await turnUntil('restoring')
    await turn()
    expect(fake.restoreJobs.size).toBe(0)
    expect((await platform.sql('select subscribes from cluster'))[0].subscribes).toBe(true)
    fake.subscribing = true
    lag(20)
    await turnUntil('live')
    expect((await platform.call('POST', `${path()}/cutover`)).status).toBe(202)
    await turn()
    lag(0, '7')
    await turn()
    expect(await show()).toMatchObject({ status: 'cutover', lag_bytes: 0 })
    lag(0, '8')
    await turn()
    expect((await show()).status).toBe('cutover')
    lag(3, '8')
    await turn()
    lag(0, '8')
    await turn()
    expect((await show()).status).toBe('cutover')
    await turn()
    expect((await show()).status).toBe('finishing')
    await turnUntil(...ended)
    expect(await show()).toMatchObject({ status: 'done', lag_bytes: 0, lag_seconds: 0, warnings: [] })
    expect(fake.sequencesCopied).toBe(1)
    expect(fake.replaced).toEqual(['fly-db'])
    expectNothingLeft()
  })

  test('stays live if the source does not stop writing, or cannot be reached', async () => {
    lag(20)
    await start({ live: true })
    await turnUntil('live')
    await turn()
    expect(await show()).toMatchObject({
      lag_bytes: 20,
      lag_seconds: 2,
      progress: '20 bytes and 2.0 s behind the source',
    })
    expect(await platform.call('POST', `${path()}/cutover`)).toMatchObject({ body: { data: { status: 'cutover' } } })
    await pass(121)
    await turn()
    expect(await show()).toMatchObject({
      status: 'live',
      warnings: ['a cut-over was given up after 120 s: the source still writes; stop its writers first'],
    })
    fake.sourceProblem = new SourceError('the source cannot be reached', true)
    await turn()
    expect(await show()).toMatchObject({ status: 'live', progress: 'the source cannot be reached' })
  })

  test('can be cut over only while it is live', async () => {
    await start({ live: true })
    expect(await platform.call('POST', `${path()}/cutover`)).toMatchObject({
      status: 409,
      body: { error: 'cannot cutover while checking; possible now: cancel' },
    })
  })

  test('fails when the slot is gone', async () => {
    await start({ live: true })
    await turnUntil('live')
    fake.liveSeen = { is: 'lost', reason: 'the replication slot is gone' }
    await turnUntil(...ended)
    expect(await show()).toMatchObject({ status: 'failed', failure: 'the replication slot is gone' })
    expectNothingLeft()
  })
})
