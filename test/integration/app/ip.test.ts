import fc from 'fast-check'
import { beforeEach, describe, expect, test } from 'vitest'
import { trimReleasedIps } from '../../../src/store/app/ip.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform({ settings: { ipPools: ['127.100.0.0/29', '127.101.0.4/31', 'fd00:1::/125'] } })
const path = '/v1/apps/shop/ip_assignments'

const allocate = (type: string, extra: object = {}, url = path) =>
  platform.call('POST', url, { body: { type, ...extra } })
const release = (ip: string) => platform.call('DELETE', `${path}/${ip}`)
const ips = async (url = path) => (await platform.call('GET', url)).body.ips.map(({ ip }: { ip: string }) => ip)

beforeEach(() => platform.createApp('shop'))

describe('an address', () => {
  test('is allocated to one app and shown with it', async () => {
    const made = await allocate('v4', { region: '', service_name: 'web', org_slug: null, network: '' })
    expect(made.status).toBe(200)
    expect(made.body).toEqual({
      ip: '127.100.0.1',
      type: 'v4',
      region: 'global',
      service_name: 'web',
      shared: false,
      egress: false,
      created_at: expect.any(String),
    })
    expect((await platform.call('GET', path)).body).toEqual({ ips: [made.body] })
    expect((await allocate('v6', { region: 'ams' })).body).toMatchObject({ ip: 'fd00:1::1', region: 'ams' })
  })

  test('is reused only after all unused addresses, in the order of release', async () => {
    const first = (await allocate('v4')).body.ip
    const second = (await allocate('v4')).body.ip
    expect((await release(second)).status).toBe(204)
    expect((await release(first)).status).toBe(204)
    const later: string[] = []
    for (let i = 0; i < 8; i++) later.push((await allocate('v4')).body.ip)
    expect(later).toEqual([
      '127.100.0.3',
      '127.100.0.4',
      '127.100.0.5',
      '127.100.0.6',
      '127.101.0.4',
      '127.101.0.5',
      second,
      first,
    ])
  })

  test('is rejected with a message when the pool is exhausted, and allocated again after a release', async () => {
    const replies = await Promise.all(Array.from({ length: 12 }, () => allocate('v4')))
    const given = replies.filter(({ status }) => status === 200).map(({ body }) => body.ip)
    expect(new Set(given).size).toBe(8)
    const refused = replies.find(({ status }) => status !== 200)!
    expect(refused).toMatchObject({
      status: 400,
      body: { error: 'all IPv4 addresses of 127.100.0.0/29, 127.101.0.4/31 are in use; release one first' },
    })
    await release(given[3])
    expect((await allocate('v4')).body.ip).toBe(given[3])
    expect((await allocate('shared_v4')).status).toBe(400)
  })

  test('fills gaps that earlier pools left', async () => {
    await platform.sql(
      `insert into ip (app_id, ip, type) select id, ip::inet, 'v4' from app, unnest(array['127.100.0.6', '127.101.0.5']) ip`,
    )
    expect((await allocate('v4')).body.ip).toBe('127.100.0.1')
    expect((await allocate('v4')).body.ip).toBe('127.100.0.2')
  })

  test('is the same for all apps when it is shared, once per app', async () => {
    await platform.createApp('other')
    const [mine, theirs] = await Promise.all([
      allocate('shared_v4'),
      allocate('shared_v4', {}, '/v1/apps/other/ip_assignments'),
    ])
    expect(mine.body).toMatchObject({ shared: true, type: 'shared_v4', ip: theirs.body.ip })
    expect((await allocate('shared_v4')).status).toBe(409)
    expect((await allocate('v4')).body.ip).not.toBe(mine.body.ip)
    await release(mine.body.ip)
    expect(await ips('/v1/apps/other/ip_assignments')).toEqual([theirs.body.ip])
    expect((await allocate('shared_v4')).body.ip).toBe(theirs.body.ip)
  })

  test('belongs to a network when it is private, and is never reused', async () => {
    await platform.createOrg('acme')
    expect((await platform.call('GET', '/v1/apps/shop')).body).not.toHaveProperty('network_cidr')
    const first = (await allocate('private_v6')).body
    const { network_cidr } = (await platform.call('GET', '/v1/apps/shop')).body
    expect(network_cidr).toMatch(/^fdaa:[0-9a-f:]+::\/48$/)
    expect(first.ip.startsWith(network_cidr.replace('::/48', ':'))).toBe(true)
    expect(first).toMatchObject({ type: 'private_v6', shared: false, ip: expect.stringMatching(/^fdaa:/) })
    await release(first.ip)
    const second = (await allocate('private_v6', { network: 'default' })).body
    expect(second.ip).not.toBe(first.ip)
    const other = (await allocate('private_v6', { network: 'island' })).body
    const foreign = (await allocate('private_v6', { org_slug: 'acme' })).body
    const shown = (await platform.call('GET', path)).body.ips
    expect([second, other, foreign]).toEqual(shown)
    expect(shown.map(({ network }: { network: object }) => network)).toEqual([
      { name: 'default', org_slug: 'personal' },
      { name: 'island', org_slug: 'personal' },
      { name: 'default', org_slug: 'acme' },
    ])
    const rows = await platform.sql(
      `select host(ip) as ip, slug, network.name from ip join network on number = network_number
       join org on org.id = org_id`,
    )
    expect(rows).toEqual(
      expect.arrayContaining([
        { ip: second.ip, slug: 'personal', name: 'default' },
        { ip: other.ip, slug: 'personal', name: 'island' },
        { ip: foreign.ip, slug: 'acme', name: 'default' },
      ]),
    )
  })

  test('is released with its app', async () => {
    for (const type of ['v4', 'v6', 'shared_v4', 'private_v6']) await allocate(type)
    await platform.call('DELETE', '/v1/apps/shop')
    await platform.work()
    expect(await platform.sql('select 1 from ip')).toEqual([])
    expect((await platform.sql('select host(ip) as ip from released_ip')).length).toBe(4)
  })
})

describe('invalid requests', () => {
  test.each([
    [{}, 400, /type is required/],
    [{ type: 'v5' }, 400, /type must be one of/],
    [{ type: 4 }, 400, /type/],
    [{ type: 'egress_v4' }, 400, /egress_v4 is not possible here/],
    [{ type: 'egress_v6' }, 400, /egress_v6/],
    [{ type: 'egress_pair' }, 400, /egress_pair/],
    [{ type: 'v4', network: 'island' }, 400, /private_v6 only/],
    [{ type: 'private_v6', network: '1x' }, 400, /network/],
    [{ type: 'private_v6', org_slug: 'nobody' }, 404, /organization not found/],
    [{ type: 'v4', service_name: 'a b' }, 400, /service_name/],
    [{ type: 'v4', region: 'a\0' }, 400, /region/],
    [{ type: 'v4', region: 'x'.repeat(33) }, 400, /region/],
  ])('%j is rejected', async (body, status, sentence) => {
    const refused = await platform.call('POST', path, { body })
    expect(refused.status).toBe(status)
    expect(refused.body.error).toMatch(sentence)
    expect(await ips()).toEqual([])
  })

  test.each(['127.100.0.9', 'x', '%00', '127.100.0.1%2F32', 'fe80::1%25lo', '1'])(
    'releasing %s answers 404',
    async (ip) => {
      await allocate('v4')
      expect((await release(ip)).status).toBe(404)
      expect(await ips()).toHaveLength(1)
    },
  )

  test('arbitrary input causes no 5xx', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.dictionary(fc.constantFrom('type', 'region', 'network', 'org_slug'), fc.jsonValue()),
        async (body) => {
          expect((await platform.call('POST', path, { body })).status).toBeLessThan(500)
        },
      ),
      { numRuns: 40 },
    )
  })

  test('of other organizations and read tokens are rejected', async () => {
    const { ip } = (await allocate('v4')).body
    await platform.createOrg('acme')
    const stranger = await platform.createToken('org', 'acme')
    const reader = await platform.createToken('read', 'personal')
    await platform.createApp('theirs', { org_slug: 'acme' })
    const calls = [
      ['GET', path, undefined],
      ['POST', path, { type: 'v4' }],
      ['DELETE', `${path}/${ip}`, undefined],
    ] as const
    for (const [method, url, body] of calls) {
      const options = body === undefined ? {} : { body }
      expect((await platform.call(method, url, { token: null, ...options })).status).toBe(401)
      expect((await platform.call(method, url, { token: stranger, ...options })).status).toBe(403)
      expect((await platform.call(method, url.replace('shop', 'free'), options)).status).toBe(404)
      if (method !== 'GET') expect((await platform.call(method, url, { token: reader, ...options })).status).toBe(403)
    }
    const theirs = '/v1/apps/theirs/ip_assignments'
    expect((await platform.call('DELETE', `${theirs}/${ip}`, { token: stranger })).status).toBe(404)
    const body = { type: 'private_v6', org_slug: 'personal' }
    expect((await platform.call('POST', theirs, { token: stranger, body })).status).toBe(404)
    expect(await ips()).toEqual([ip])
  })
})

test('only the addresses that were released last are remembered', async () => {
  await platform.sql(
    `insert into released_ip (ip, released_at) select 'fd00::'::inet + n, now() - interval '1 s' * n from generate_series(1, 50) n`,
  )
  await trimReleasedIps(platform.database.db, 20)
  expect(await platform.sql('select count(*), max(ip) from released_ip')).toEqual([{ count: 20, max: 'fd00::14' }])
})
