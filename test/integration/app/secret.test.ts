import fc from 'fast-check'
import { beforeEach, describe, expect, test } from 'vitest'
import { openSealedSecrets, sealSecretsForMachine } from '../../../src/store/app/secret.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const path = '/v1/apps/shop/secrets'
const change = (values: unknown, token?: string) =>
  platform.call('POST', path, { body: { values }, ...(token === undefined ? {} : { token }) })
const names = async (query = '') =>
  (await platform.call('GET', path + query)).body.secrets.map((one: { name: string }) => one.name)

beforeEach(() => platform.createApp('shop'))

async function sealed() {
  const [app] = await platform.sql(`select id from app where name = 'shop'`)
  return sealSecretsForMachine(platform.database.db, app!.id, platform.fake.encryptionKey)
}

describe('changing secrets', () => {
  test('sets and deletes several in one request, and increments the version with each change', async () => {
    expect(await change({ B: 'two', A: 'one', EMPTY: '' })).toMatchObject({ status: 200, body: { version: 1 } })
    const changed = await change({ A: null, NEVER: null, C: 'ünïcode\nlines' })
    expect(changed).toMatchObject({ status: 200, body: { version: 2, Version: 2 } })
    expect(changed.body.secrets.map((one: { name: string }) => one.name)).toEqual(['B', 'C', 'EMPTY'])
    expect(await names()).toEqual(['B', 'C', 'EMPTY'])
  })

  test('works for single secrets', async () => {
    const made = await platform.call('POST', `${path}/A`, { body: { value: 'one' } })
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      name: 'A',
      digest: expect.stringMatching(/^[0-9a-f]{16}$/),
      created_at: expect.any(String),
      updated_at: expect.any(String),
      version: 1,
      Version: 1,
    })
    expect((await platform.call('GET', `${path}/A`)).body).toEqual({
      name: 'A',
      digest: made.body.digest,
      created_at: made.body.created_at,
      updated_at: made.body.updated_at,
    })
    expect(await platform.call('DELETE', `${path}/A`)).toMatchObject({ status: 200, body: { version: 2, Version: 2 } })
    for (const method of ['GET', 'DELETE'] as const) {
      expect(await platform.call(method, `${path}/A`)).toMatchObject({
        status: 404,
        body: { error: 'secret not found' },
      })
    }
    expect(await sealed()).toMatchObject({ version: 2 })
  })

  test('equal values have equal digests within an app only', async () => {
    await platform.createApp('other')
    await change({ A: 'same', B: 'same', C: 'else' })
    await platform.call('POST', '/v1/apps/other/secrets', { body: { values: { A: 'same' } } })
    const [a, b, c] = (await platform.call('GET', path)).body.secrets
    expect(a.digest).toBe(b.digest)
    expect(c.digest).not.toBe(a.digest)
    expect((await platform.call('GET', '/v1/apps/other/secrets')).body.secrets[0].digest).not.toBe(a.digest)
  })

  test.each([
    [{}, /values is required/],
    [{ values: [] }, /values must be an object/],
    [{ values: { A: 1 } }, /values\.A must be a string or null/],
    [{ values: { A: { b: 1 } } }, /values\.A/],
    [{ values: { '1A': 'x' } }, /name of a secret/],
    [{ values: { 'A-B': 'x' } }, /name of a secret/],
    [{ values: { '': 'x' } }, /name of a secret/],
    [{ values: { 'A=B': null } }, /name of a secret/],
    [{ values: { ['A'.repeat(129)]: 'x' } }, /name of a secret/],
    [{ values: { A: 'a\0b' } }, /NUL/],
    [{ values: { A: 'é'.repeat(32_769) } }, /65536 bytes/],
  ])('rejects %j', async (body, sentence) => {
    const refused = await platform.call('POST', path, { body })
    expect(refused.status).toBe(400)
    expect(refused.body.error).toMatch(sentence)
    expect(await names()).toEqual([])
  })

  test('rejects the whole change when an environment could not hold the secrets', async () => {
    const large = Object.fromEntries(Array.from({ length: 7 }, (_, i) => [`A${i}`, 'x'.repeat(65_536)]))
    expect((await change(large)).status).toBe(200)
    const refused = await change({ B: 'x'.repeat(65_536), A0: 'kept as it was' })
    expect(refused.status).toBe(200)
    expect(await change({ C: 'x'.repeat(65_536), A0: 'y'.repeat(65_536) })).toMatchObject({
      status: 400,
      body: { error: expect.stringContaining('524288') },
    })
    const many = Object.fromEntries(Array.from({ length: 1001 }, (_, i) => [`M${i}`, '']))
    expect(await change(many)).toMatchObject({ status: 400, body: { error: expect.stringContaining('1000') } })
    expect((await sealed()).version).toBe(2)
  })

  test('in concurrent requests loses none', async () => {
    const replies = await Promise.all(Array.from({ length: 20 }, (_, i) => change({ [`N${i}`]: String(i) })))
    expect(replies.map((reply) => reply.body.version).sort((a, b) => a - b)).toEqual(
      Array.from({ length: 20 }, (_, i) => i + 1),
    )
    expect(await names()).toHaveLength(20)
  })
})

describe('reading secrets', () => {
  beforeEach(() => change({ A: 'hidden' }))

  test('shows values only on request, and never to read tokens', async () => {
    expect(JSON.stringify((await platform.call('GET', path)).body)).not.toContain('hidden')
    expect((await platform.call('GET', `${path}?show_secrets=true`)).body.secrets[0].value).toBe('hidden')
    expect((await platform.call('GET', `${path}/A?show_secrets=1`)).body.value).toBe('hidden')
    const token = await platform.createToken('read', 'personal')
    expect((await platform.call('GET', path, { token })).status).toBe(200)
    for (const url of [`${path}?show_secrets=true`, `${path}/A?show_secrets=true`]) {
      expect((await platform.call('GET', url, { token })).status).toBe(403)
    }
  })

  test('fails when the stored version is older than min_version', async () => {
    expect((await platform.call('GET', `${path}?min_version=1`)).status).toBe(200)
    expect((await platform.call('GET', `${path}?version=2`)).status).toBe(412)
    expect((await platform.call('GET', `${path}/A?min_version=2`)).status).toBe(412)
  })

  test.each(['?min_version=x', '?min_version=-1', '?show_secrets=maybe'])('%s returns 400', async (query) => {
    expect((await platform.call('GET', path + query)).status).toBe(400)
  })

  test('finds only encrypted values in the database', async () => {
    const [row] = await platform.sql('select value from secret')
    expect(row!.value.toString('latin1')).not.toContain('hidden')
  })

  test('a machine version keeps the values from the time it was created', async () => {
    const before = await sealed()
    await change({ A: 'later', __proto__x: 'odd' })
    expect(openSealedSecrets(before.sealed, platform.fake.encryptionKey)).toEqual({ A: 'hidden' })
    const after = await sealed()
    expect(after.version).toBe(2)
    expect(openSealedSecrets(after.sealed, platform.fake.encryptionKey)).toEqual({ A: 'later', __proto__x: 'odd' })
  })

  test('returns any text as it was set', async () => {
    const text = fc.string({ unit: 'grapheme' }).filter((value) => !value.includes('\0'))
    await fc.assert(
      fc.asyncProperty(text, async (value) => {
        expect((await change({ F: value })).status).toBe(200)
        expect(openSealedSecrets((await sealed()).sealed, platform.fake.encryptionKey).F).toBe(value)
      }),
      { numRuns: 30 },
    )
  })
})

describe('access to secrets', () => {
  test('is rejected for other organizations, and read tokens change nothing', async () => {
    await change({ A: 'hidden' })
    await platform.createOrg('acme')
    const stranger = await platform.createToken('org', 'acme')
    const reader = await platform.createToken('read', 'personal')
    const calls = [
      ['GET', path, undefined],
      ['POST', path, { values: { A: null } }],
      ['GET', `${path}/A`, undefined],
      ['POST', `${path}/A`, { value: 'mine' }],
      ['DELETE', `${path}/A`, undefined],
    ] as const
    for (const [method, url, body] of calls) {
      const options = body === undefined ? {} : { body }
      expect((await platform.call(method, url, { token: null, ...options })).status).toBe(401)
      expect((await platform.call(method, url, { token: stranger, ...options })).status).toBe(403)
      expect((await platform.call(method, url.replace('shop', 'free'), { ...options })).status).toBe(404)
      if (method !== 'GET') expect((await platform.call(method, url, { token: reader, ...options })).status).toBe(403)
    }
    expect((await platform.call('GET', `${path}/A?show_secrets=1`)).body.value).toBe('hidden')
  })

  test('a new app does not see the secrets of a deleted app of the same name', async () => {
    await change({ A: 'old' })
    await platform.call('DELETE', '/v1/apps/shop')
    await platform.createApp('shop')
    expect(await names()).toEqual([])
    await platform.work()
    expect(await platform.sql('select 1 from secret')).toEqual([])
  })
})
