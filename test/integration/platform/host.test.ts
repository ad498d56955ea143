import { beforeEach, describe, expect, test } from 'vitest'
import { certificateKey } from '../../../src/model/app/certificate.ts'
import { unseal } from '../../../src/model/seal.ts'
import { watchCertificates } from '../../../src/reconcile/app/certificate.ts'
import { usePlatform } from '../../support/platform.ts'
import { makePair } from '../../support/tls.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const path = '/v1/apps/shop/certificates'
const pairs = new Map<string, { fullchain: string; private_key: string }>()

function pair(host: string) {
  const known = pairs.get(host)
  if (known) return known
  const { cert, key } = makePair(host)
  const made = { fullchain: cert, private_key: key }
  pairs.set(host, made)
  return made
}

const custom = (hostname: string, extra: object = {}, token?: string) =>
  platform.call('POST', `${path}/custom`, {
    body: { hostname, ...pair('www.example.com'), ...extra },
    ...(token ? { token } : {}),
  })

beforeEach(() => platform.createApp('shop'))

test('an uploaded certificate is stored, shown without its key, and replaced by the next one', async () => {
  const made = await custom('WWW.example.com.')
  expect(made.status).toBe(201)
  expect(made.body).toMatchObject({
    hostname: 'www.example.com',
    configured: true,
    acme_requested: false,
    status: 'active',
    rate_limited_until: null,
    certificates: [{ source: 'custom', status: 'active', issuer: 'www.example.com', issued: [{ type: 'ecdsa' }] }],
    dns_requirements: { a: [], aaaa: [], cname: expect.stringContaining('shop.') },
    validation_errors: [],
  })
  expect(JSON.stringify(made.body)).not.toContain('PRIVATE KEY')
  expect((await platform.call('GET', `${path}/www.example.com`)).body).toEqual(made.body)
  const [row] = await platform.sql('select private_key from certificate')
  const key = certificateKey(platform.fake.encryptionKey)
  expect(unseal(key, row!.private_key).toString()).toBe(pair('www.example.com').private_key)
  const wild = pair('*.example.com')
  expect((await custom('www.example.com', wild)).body.certificates).toMatchObject([{ issuer: '*.example.com' }])
})

test('host names are listed in pages and filtered by substring', async () => {
  for (const name of ['a', 'b', 'c']) await custom(`${name}.example.com`, pair('*.example.com'))
  await custom('*.example.com', pair('*.example.com'))
  const first = (await platform.call('GET', `${path}?limit=3`)).body
  expect(first).toMatchObject({ total_count: 4, next_cursor: expect.any(String) })
  const second = (await platform.call('GET', `${path}?limit=3&cursor=${first.next_cursor}`)).body
  const names = [...first.certificates, ...second.certificates].map(({ hostname }: { hostname: string }) => hostname)
  expect(names).toEqual(['*.example.com', 'a.example.com', 'b.example.com', 'c.example.com'])
  expect(second.next_cursor).toBeUndefined()
  expect((await platform.call('GET', `${path}?filter=B.ex`)).body).toMatchObject({
    total_count: 1,
    certificates: [
      {
        hostname: 'b.example.com',
        has_custom_certificate: true,
        has_fly_certificate: false,
        acme_requested: false,
        acme_dns_configured: false,
        acme_alpn_configured: true,
        acme_http_configured: true,
        ownership_txt_configured: false,
        updated_at: expect.stringMatching(/Z$/),
      },
    ],
  })
  expect((await platform.call('GET', `${path}?filter=none`)).body).toEqual({ certificates: [], total_count: 0 })
})

test('the platform authority issues a certificate on request, also beside an uploaded one', async () => {
  const { fullchain, private_key } = pair('www.example.com')
  platform.fake.certificate = { fullchain, privateKey: private_key }
  const made = await platform.call('POST', `${path}/acme`, { body: { hostname: 'www.example.com' } })
  expect([made.status, made.body.acme_requested, made.body.certificates.length]).toEqual([201, true, 1])
  const both = await custom('www.example.com')
  expect(both.body.certificates.map(({ source }: { source: string }) => source)).toEqual(['custom', 'fly'])
  const without = await platform.call('DELETE', `${path}/www.example.com/custom`)
  expect([without.status, without.body.configured, without.body.warning]).toEqual([200, true, undefined])
  const bare = await platform.call('DELETE', `${path}/www.example.com/acme`)
  expect([bare.body.configured, bare.body.status]).toEqual([false, 'pending_validation'])
  expect(bare.body.warning).toMatch(/no certificate left/)
  const checked = await platform.call('POST', `${path}/www.example.com/check`)
  expect(checked.body.dns_records).toEqual({
    ...{ a: [], aaaa: [], cname: [], resolved_addresses: [] },
    ...{ soa: null, acme_challenge_cname: null, ownership_txt: null },
  })
  expect((await platform.call('DELETE', `${path}/www.example.com`)).status).toBe(204)
  expect((await platform.call('GET', `${path}/www.example.com`)).status).toBe(404)
})

test('a check shows the zone, the delegated challenge and the ownership record of a host name', async () => {
  expect((await custom('www.example.com')).status).toBe(201)
  const zone = { soa: 'ns1.example.com', acmeChallengeCname: 'a.acme.example.net', ownershipTxt: 'app-1' }
  platform.fake.records = { a: ['1.1.1.1'], aaaa: ['2606:4700::1'], cname: [], ...zone }
  const { body } = await platform.call('POST', `${path}/www.example.com/check`)
  expect(body.dns_records).toEqual({
    a: ['1.1.1.1'],
    aaaa: ['2606:4700::1'],
    cname: [],
    resolved_addresses: ['1.1.1.1', '2606:4700::1'],
    soa: 'ns1.example.com',
    acme_challenge_cname: 'a.acme.example.net',
    ownership_txt: 'app-1',
  })
})

test('certificates of the platform authority are renewed before they expire, uploaded ones are not', async () => {
  for (const [hostname, left] of [
    ['old.example.com', '29 days'],
    ['young.example.com', '31 days'],
  ] as const) {
    const given = pair(hostname)
    platform.fake.certificate = { fullchain: given.fullchain, privateKey: given.private_key }
    await platform.call('POST', `${path}/acme`, { body: { hostname } })
    await custom(hostname, given)
    await platform.sql('update certificate set expires_at = now() + $2::interval where hostname = $1', [hostname, left])
  }
  const wild = pair('*.example.com')
  platform.fake.certificate = { fullchain: wild.fullchain, privateKey: wild.private_key }
  const renewed = () => platform.sql('select hostname, source from certificate where fullchain = $1', [wild.fullchain])
  const errors: unknown[] = []
  const watch = watchCertificates(platform.fake.world(platform.database.db), (error) => errors.push(error))
  await until(async () => (await renewed()).length > 0)
  await watch.stop()
  expect(await renewed()).toEqual([{ hostname: 'old.example.com', source: 'authority' }])
  const [row] = await platform.sql('select private_key from certificate where fullchain = $1', [wild.fullchain])
  expect(String(unseal(certificateKey(platform.fake.encryptionKey), row.private_key))).toBe(wild.private_key)
  expect(errors).toEqual([])
})

test.each<[string, object, RegExp]>([
  ['no host name', { hostname: 'nonsense' }, /hostname must be a host name/],
  ['an address', { hostname: '127.0.0.1' }, /hostname must be a host name/],
  ['a star in the middle', { hostname: 'a.*.example.com' }, /hostname must be a host name/],
  ['a number', { hostname: 5 }, /hostname/],
  ['nothing', { hostname: undefined }, /hostname/],
  ['another host name', { hostname: 'other.example.com' }, /the certificate is not for other.example.com/],
  ['no chain', { fullchain: 'hello' }, /fullchain must be 1 to 10 certificates/],
  [
    'a broken chain',
    { fullchain: '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----' },
    /contains an invalid certificate/,
  ],
  ['no key', { private_key: 'hello' }, /private_key must be a private key/],
  ['a key of another', { private_key: 'other' }, /private_key/],
])('a certificate with %s is rejected', async (_name, changes, message) => {
  const extra = 'private_key' in changes && changes.private_key === 'other' ? pairKey() : changes
  const reply = await custom('www.example.com', extra)
  expect([reply.status, reply.body.error]).toEqual([422, expect.stringMatching(message)])
})

function pairKey(): object {
  return { private_key: pair('other.example.com').private_key }
}

test("host names below the platform's domains are rejected", async () => {
  const { body } = await custom('www.example.com')
  const domain = body.dns_requirements.cname.slice('shop.'.length)
  for (const hostname of [`shop.${domain}`, `other.${domain}`, `*.${domain}`, domain]) {
    const reply = await platform.call('POST', `${path}/acme`, { body: { hostname } })
    expect([reply.status, reply.body.error]).toEqual([422, expect.stringContaining("the platform's own domain")])
  }
})

test('a host name belongs to one app, also with concurrent requests', async () => {
  await platform.createApp('rival')
  const ask = (app: string) =>
    platform.call('POST', `/v1/apps/${app}/certificates/custom`, {
      body: { hostname: 'www.example.com', ...pair('www.example.com') },
    })
  const statuses = (await Promise.all([ask('shop'), ask('rival'), ask('shop'), ask('rival')])).map(
    ({ status }) => status,
  )
  expect(statuses.toSorted()).toEqual([201, 201, 422, 422])
  expect((await platform.sql('select distinct app_id from certificate')).length).toBe(1)
})

test('other organizations are rejected, and read tokens change nothing', async () => {
  await custom('www.example.com')
  await platform.createOrg('others')
  const stranger = await platform.createToken('org', 'others')
  const reader = await platform.createToken('read', 'personal')
  const body = { hostname: 'x.example.com', ...pair('*.example.com') }
  const calls = [
    ['GET', path],
    ['POST', `${path}/acme`],
    ['POST', `${path}/custom`],
    ['GET', `${path}/www.example.com`],
    ['POST', `${path}/www.example.com/check`],
    ['DELETE', `${path}/www.example.com`],
    ['DELETE', `${path}/www.example.com/acme`],
    ['DELETE', `${path}/www.example.com/custom`],
  ] as const
  for (const [method, route] of calls) {
    const given = method === 'POST' ? { body } : {}
    expect((await platform.call(method, route, { ...given, token: stranger })).status).toBe(403)
    expect((await platform.call(method, route, { ...given, token: null })).status).toBe(401)
    const isRead = method === 'GET' || route.endsWith('/check')
    expect((await platform.call(method, route, { ...given, token: reader })).status).toBe(isRead ? 200 : 403)
    expect((await platform.call(method, route.replace('shop', 'nobody'), given)).status).toBe(404)
  }
})

describe('a wildcard and a name that it covers', () => {
  beforeEach(async () => {
    await platform.createOrg('acme')
    await platform.createApp('theirs', { org_slug: 'acme' })
    await platform.createApp('mine')
  })

  const claim = (app: string, hostname: string) =>
    platform.call('POST', `/v1/apps/${app}/certificates/custom`, { body: { hostname, ...pair(hostname) } })

  test.each([
    ['*.example.com', 'a.example.com'],
    ['a.example.com', '*.example.com'],
    ['*.b.example.com', 'a.b.example.com'],
  ])('belong to one organization: %s, then %s', async (first, second) => {
    expect((await claim('theirs', first)).status).toBe(201)
    expect(await claim('shop', second)).toMatchObject({
      status: 422,
      body: { error: 'hostname is in use by another app', status: 'hostname_taken' },
    })
    expect((await platform.call('GET', `${path}/${second}`)).status).toBe(404)
    // The same answer as for the name itself, so that it does not say which of the two exists.
    expect((await claim('shop', first)).body).toEqual((await claim('shop', second)).body)
    expect((await claim('theirs', second)).status).toBe(201)
    expect((await claim('theirs', first)).status).toBe(201)
  })

  test.each([
    ['*.example.com', 'example.com'],
    ['*.example.com', 'a.b.example.com'],
    ['*.example.com', '*.b.example.com'],
    ['a.example.com', 'b.example.com'],
  ])('do not include %s and %s', async (first, second) => {
    expect((await claim('theirs', first)).status).toBe(201)
    expect((await claim('shop', second)).status).toBe(201)
  })

  test('may belong to two apps of one organization', async () => {
    expect((await claim('shop', '*.example.com')).status).toBe(201)
    expect((await claim('mine', 'a.example.com')).status).toBe(201)
  })

  test('can be claimed when the other has been deleted', async () => {
    expect((await claim('theirs', 'a.example.com')).status).toBe(201)
    expect((await platform.call('DELETE', '/v1/apps/theirs/certificates/a.example.com')).status).toBe(204)
    expect((await claim('shop', '*.example.com')).status).toBe(201)
  })

  test('are not both claimed by concurrent requests', async () => {
    for (let round = 0; round < 20; round++) {
      const claims = [claim('theirs', '*.example.com'), claim('shop', 'a.example.com'), claim('shop', 'b.example.com')]
      const statuses = (await Promise.all(claims)).map(({ status }) => status)
      expect([
        [201, 422, 422],
        [422, 201, 201],
      ]).toContainEqual(statuses)
      await platform.sql('delete from host')
    }
  })
})

test('a wildcard that covers the domain of the platform is refused', async () => {
  const refused = await custom('*.localhost', pair('*.localhost'))
  expect(refused.status).toBe(422)
})
