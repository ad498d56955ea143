import { beforeEach, describe, expect, test } from 'vitest'
import { quotaNames, quotaTable } from '../../../src/model/account/quota.ts'
import { type CallOptions, type Method, type Reply, usePlatform } from '../../support/platform.ts'
import { makePair } from '../../support/tls.ts'

const platform = usePlatform()
const { call, callSandbox } = platform

let token = ''

beforeEach(async () => {
  await platform.createOrg('acme')
  await platform.createOrg('other')
  token = await platform.createToken('org', 'acme')
})

async function setQuotas(limits: Record<string, number | string>, slug = 'acme'): Promise<Reply> {
  return call('PATCH', `/v1/orgs/${slug}/quotas`, { body: limits })
}

async function quotaOf(
  name: string,
  slug = 'acme',
): Promise<{ limit: number | null; used: number; is_default: boolean }> {
  const { body } = await call('GET', `/v1/orgs/${slug}/quotas`)
  return body.quotas.find((quota: { name: string }) => quota.name === name)
}

async function usedOf(name: string, slug = 'acme'): Promise<number> {
  return (await quotaOf(name, slug)).used
}

/** The counters must always have the numbers that counting the rows gives. */
async function expectCountersCorrect(): Promise<void> {
  const counted = await platform.sql('select * from counted_usage where used <> 0 order by org_id, quota')
  expect(await platform.sql('select * from org_usage where used <> 0 order by org_id, quota')).toEqual(counted)
}

const asOrg = (method: Method, url: string, options: CallOptions = {}) => call(method, url, { token, ...options })
const sandboxAsOrg = (method: Method, url: string, options: CallOptions = {}) =>
  callSandbox(method, url, { token, ...options })

const config = { image: 'docker.io/library/nginx:1' }
let next = 0
const fresh = (prefix: string) => `${prefix}-${next++}`

const createApp = (name = fresh('app'), extra: object = {}) =>
  asOrg('POST', '/v1/apps', { body: { app_name: name, org_slug: 'acme', ...extra } })
const createMachine = (app: string, extra: object = {}) =>
  asOrg('POST', `/v1/apps/${app}/machines`, { body: { config, skip_launch: true, ...extra } })
const createVolume = (app: string, body: object = {}) =>
  asOrg('POST', `/v1/apps/${app}/volumes`, { body: { name: 'data', size_gb: 1, ...body } })
const createCluster = (body: object = {}) =>
  asOrg('POST', '/v1/postgres', { body: { org_slug: 'acme', plan: 'basic', name: fresh('db'), ...body } })
const createSandbox = (body: object = {}) =>
  sandboxAsOrg('POST', '/v1/sandboxes', { body: { name: fresh('box'), ...body } })

async function appWith(): Promise<string> {
  const name = fresh('app')
  expect((await createApp(name)).status).toBe(201)
  return name
}

interface Kind {
  quota: string
  /** Prepares what the creations need and returns a function that creates one more. */
  prepare(): Promise<() => Promise<Reply>>
  /** Whether the request goes to the sandbox API. */
  sandbox?: true
}

const kinds: Kind[] = [
  { quota: 'apps', prepare: async () => () => createApp() },
  {
    quota: 'machines',
    prepare: async () => {
      const app = await appWith()
      return () => createMachine(app)
    },
  },
  {
    quota: 'volumes',
    prepare: async () => {
      const app = await appWith()
      return () => createVolume(app)
    },
  },
  {
    quota: 'secrets',
    prepare: async () => {
      const app = await appWith()
      return () => asOrg('POST', `/v1/apps/${app}/secrets/${fresh('S').replace('-', '_')}`, { body: { value: 'x' } })
    },
  },
  {
    quota: 'addresses',
    prepare: async () => {
      const app = await appWith()
      return () => asOrg('POST', `/v1/apps/${app}/ip_assignments`, { body: { type: 'v4' } })
    },
  },
  {
    quota: 'networks',
    prepare: async () => async () => {
      const app = fresh('app')
      await createApp(app, { network: fresh('net') })
      return createMachine(app)
    },
  },
  {
    quota: 'hostnames',
    prepare: async () => {
      const { cert, key } = makePair('*.example.com')
      platform.fake.certificate = { fullchain: cert, privateKey: key }
      const app = await appWith()
      return () =>
        asOrg('POST', `/v1/apps/${app}/certificates/acme`, { body: { hostname: `${fresh('h')}.example.com` } })
    },
  },
  { quota: 'clusters', prepare: async () => () => createCluster() },
  { quota: 'sandboxes', prepare: async () => () => createSandbox(), sandbox: true },
  {
    quota: 'images',
    prepare: async () => () => createSandbox({ image: `docker.io/library/${fresh('image')}` }),
    sandbox: true,
  },
  {
    quota: 'tokens',
    prepare: async () => () => asOrg('POST', '/v1/tokens', { body: { kind: 'read', org_slug: 'acme' } }),
  },
]

describe.each(kinds)('the quota $quota', ({ quota, prepare, sandbox }) => {
  test('refuses what exceeds it, names limit and usage, and says who can raise it', async () => {
    const create = await prepare()
    const before = await usedOf(quota)
    expect((await setQuotas({ [quota]: before + 2 })).status).toBe(200)
    expect((await create()).status).toBeLessThan(300)
    expect((await create()).status).toBeLessThan(300)
    const refused = await create()
    expect(refused.status).toBe(422)
    const message = sandbox ? refused.body.message : refused.body.error
    expect(message).toBe(
      `quota ${quota} exceeded: organization acme uses ${before + 2} of ${before + 2}; delete what is not needed, or ask the operator of the platform to raise the quota`,
    )
    expect(sandbox ? refused.body.error : refused.body.status).toBe('quota_exceeded')
    if (sandbox) expect(refused.body).toMatchObject({ limit: before + 2, current_count: before + 2 })
    expect(await usedOf(quota)).toBe(before + 2)
    await expectCountersCorrect()
    await setQuotas({ [quota]: before + 3 })
    expect((await create()).status).toBeLessThan(300)
  })

  test('lets exactly as many of twenty concurrent creations succeed as fit', async () => {
    const create = await prepare()
    const room = 3
    await setQuotas({ [quota]: (await usedOf(quota)) + room })
    const replies = await Promise.all(Array.from({ length: 20 }, () => create()))
    const statuses = replies.map(({ status }) => status)
    expect(statuses.filter((status) => status < 300)).toHaveLength(room)
    expect(statuses.filter((status) => status === 422)).toHaveLength(20 - room)
    await expectCountersCorrect()
  })

  test('of one organization does not limit another', async () => {
    const create = await prepare()
    await setQuotas({ [quota]: 0 }, 'other')
    expect((await create()).status).toBeLessThan(300)
  })
})

test('there is a default for every quota, and none is above its documented value', async () => {
  const rows = await platform.sql('select quota, max from quota_default order by quota')
  expect(rows).toEqual(quotaNames.toSorted().map((name) => ({ quota: name, max: quotaTable[name].standard })))
})

test('the defaults of machines and sandboxes leave room for other organizations', () => {
  const slots = 1023
  expect(4 * (quotaTable.machines.standard + quotaTable.sandboxes.standard)).toBeLessThan(slots)
})

/** What limits the rows of each table that an organization can fill. A new table needs an entry, and so a limit. */
const bounds: Record<string, string> = {
  app: 'quota apps',
  attachment: 'one per cluster and app',
  attachment_secret: 'quota secrets',
  archive: 'few per cluster',
  backup: 'quota backups, and one scheduled per interval',
  box_slot: 'its primary key, and twice the quotas machines and sandboxes per organization',
  certificate: 'two per host name',
  checkpoint: 'quota checkpoints, and few automatic ones per sandbox',
  cluster: 'quota clusters',
  cluster_port: 'two per cluster',
  cluster_user: 'quota database_users',
  damage: 'few per cluster',
  drill: 'one at a time per cluster',
  edge_request: 'one per command and resource',
  event: 'one per change of a state; the rate of changes is limited by BERTH_RATE_LIMIT',
  host: 'quota hostnames',
  idempotency: 'removed after a day; the rate is limited by BERTH_RATE_LIMIT',
  import: 'one per cluster',
  ip: 'quota addresses',
  machine: 'quota machines; destroyed ones are removed after an hour',
  machine_check: 'a few per machine',
  machine_event: '100 per machine',
  machine_load: 'one per machine and edge worker',
  machine_version: '100 per machine',
  migration: 'the platform',
  network: 'quota networks',
  network_policy: '100 per app',
  org: 'only root tokens create organizations',
  org_image: 'quota images',
  org_quota: 'one per organization and quota',
  org_usage: 'one per organization and quota',
  pin: 'few per cluster',
  quota_default: 'the platform',
  release: '100 per app',
  released_ip: 'the 100,000 that were released last',
  restore: 'one per cluster',
  sample: 'one per cluster and minute of the recovery window',
  sandbox: 'quota sandboxes',
  secret: 'quota secrets',
  secret_key: 'quota secrets',
  service: '100 per sandbox',
  snapshot: 'quota snapshots, and one scheduled per day',
  stretch: 'few per cluster: one per change of its clock, which tenants cannot change, and per hole in its archive',
  task: '100 per sandbox',
  token: 'quota tokens',
  upgrade: 'one per cluster',
  volume: 'quota volumes',
  work: 'one per resource',
}

test('every table has a limit, and every quota that a table names is counted by a trigger on it', async () => {
  const tables = await platform.sql(`select tablename as name from pg_tables where schemaname = 'public' order by name`)
  expect(tables.map(({ name }) => name).filter((name) => !(name in bounds))).toEqual([])
  const rows = await platform.sql(
    `select tgrelid::regclass::text as name, string_agg(pg_get_triggerdef(oid), ';') as text from pg_trigger group by 1`,
  )
  const triggers = new Map(rows.map(({ name, text }) => [name, text]))
  const uncounted = Object.entries(bounds).filter(([table, bound]) => {
    const quota = /^quota (\w+)/.exec(bound)?.[1]
    if (quota === undefined || table === 'app' || table === 'attachment_secret') return false
    return !triggers.get(table)?.includes(`count_row('${quota}')`)
  })
  expect(uncounted).toEqual([])
})
