import { createHmac, createPublicKey, verify } from 'node:crypto'
import { beforeEach, describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const path = '/v1/apps/shop/secretkeys'
const base64 = (text: string) => Buffer.from(text).toString('base64')
const post = (rest: string, body: object = {}) => platform.call('POST', `${path}/${rest}`, { body })

beforeEach(() => platform.createApp('shop'))

describe('keys of an app', () => {
  test('are created, shown without the private key, listed by type and deleted', async () => {
    const made = await post('SIGNING/generate', { type: 'es256' })
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      name: 'SIGNING',
      type: 'es256',
      public_key: expect.any(String),
      created_at: expect.any(String),
      updated_at: expect.any(String),
      version: 1,
      Version: 1,
    })
    expect((await post('SIGNING/generate', { type: 'es256' })).status).toBe(409)
    expect((await post('BOX', { type: 'xaes256gcm', value: base64('k'.repeat(32)) })).body.version).toBe(2)
    const names = async (query = '') =>
      (await platform.call('GET', path + query)).body.secret_keys.map((key: { name: string }) => key.name)
    expect(await names()).toEqual(['BOX', 'SIGNING'])
    expect(await names('?types=es256,hs256&min_version=1')).toEqual(['SIGNING'])
    expect((await platform.call('GET', `${path}?types=odd`)).status).toBe(400)
    expect(JSON.stringify((await platform.call('GET', `${path}/BOX`)).body)).not.toContain(base64('k'.repeat(32)))
    const [row] = await platform.sql(`select key from secret_key where name = 'BOX'`)
    expect(row!.key.includes('kkkkkkkk')).toBe(false)
    expect(await platform.call('DELETE', `${path}/BOX`)).toMatchObject({ status: 200, body: { version: 3 } })
    for (const method of ['GET', 'DELETE'] as const)
      expect((await platform.call(method, `${path}/BOX`)).status).toBe(404)
  })

  test('are read and used only when the stored version is at least min_version, which has the alias version', async () => {
    const { version } = (await post('A/generate', { type: 'hs256' })).body
    await post('B/generate', { type: 'xaes256gcm' })
    const [plaintext, newer] = [base64('text'), version + 2]
    const { signature } = (await post('A/sign', { plaintext })).body
    const { ciphertext } = (await post('B/encrypt', { plaintext })).body
    const calls: ['GET' | 'POST', string, object | undefined][] = [
      ['GET', path, undefined],
      ['GET', `${path}/A`, undefined],
      ['POST', `${path}/A/sign`, { plaintext }],
      ['POST', `${path}/A/verify`, { plaintext, signature }],
      ['POST', `${path}/B/encrypt`, { plaintext }],
      ['POST', `${path}/B/decrypt`, { ciphertext }],
    ]
    for (const [method, at, body] of calls) {
      for (const name of ['min_version', 'version']) {
        const ask = (least: number) => platform.call(method, `${at}?${name}=${least}`, body && { body })
        expect([at, (await ask(version)).status]).toEqual([at, at.endsWith('verify') ? 204 : 200])
        expect([at, (await ask(newer)).status]).toEqual([at, 412])
      }
      expect((await platform.call(method, `${at}?min_version=x`, body && { body })).status).toBe(400)
    }
  })

  test('sign and verify', async () => {
    const { public_key } = (await post('A/generate', { type: 'es256' })).body
    const { signature } = (await post('A/sign', { plaintext: base64('text') })).body
    const key = createPublicKey({ key: Buffer.from(public_key, 'base64'), type: 'spki', format: 'der' })
    const bytes = Buffer.from(signature, 'base64')
    expect(verify('sha256', Buffer.from('text'), { key, dsaEncoding: 'ieee-p1363' }, bytes)).toBe(true)
    expect((await post('A/verify', { plaintext: base64('text'), signature })).status).toBe(204)
    expect((await post('A/verify', { plaintext: [...Buffer.from('text')], signature })).status).toBe(204)
    expect((await post('A/verify', { plaintext: base64('else'), signature })).status).toBe(400)
    expect((await post('A/encrypt', { plaintext: '' })).body.error).toContain('cannot encrypt')
    await post('B', { type: 'hs256', value: base64('k'.repeat(32)) })
    const mac = createHmac('sha256', 'k'.repeat(32)).update('text').digest('base64')
    expect((await post('B/sign', { plaintext: base64('text') })).body.signature).toBe(mac)
  })

  test('encrypt and decrypt, with associated data', async () => {
    await post('A/generate', { type: 'xaes256gcm' })
    const sealed = (await post('A/encrypt', { plaintext: base64('text'), associated_data: base64('for me') })).body
    const opened = await post('A/decrypt', { ...sealed, associated_data: base64('for me') })
    expect(opened).toMatchObject({ status: 200, body: { plaintext: base64('text') } })
    expect((await post('A/decrypt', { ...sealed, associated_data: null })).status).toBe(400)
    expect((await post('A/sign', { plaintext: '' })).body.error).toContain('cannot sign')
  })

  test('are compatible with libsodium', async () => {
    const key = base64('k'.repeat(32))
    const box = (await post('A', { type: 'nacl_box', value: key })).body
    expect(box).toMatchObject({ type: 'nacl_box', public_key: 'hGL7PweY+f4sOfOCO7Qc0+/+cLtcgXNb5GoUMTXFhFQ=' })
    const secret = (await post('B', { type: 'nacl_secretbox', value: key })).body
    expect(secret).toMatchObject({ type: 'nacl_secretbox', public_key: null })
    for (const name of ['A', 'B']) {
      const { ciphertext } = (await post(`${name}/encrypt`, { plaintext: base64('text') })).body
      expect((await post(`${name}/decrypt`, { ciphertext })).body).toEqual({ plaintext: base64('text') })
      const along = { ciphertext, associated_data: base64('for me') }
      expect((await post(`${name}/decrypt`, along)).body.error).toContain('associated_data goes with')
      const other = name === 'A' ? 'B' : 'A'
      expect((await post(`${other}/decrypt`, { ciphertext })).status).toBe(400)
      expect((await post(`${name}/sign`, { plaintext: '' })).body.error).toContain('cannot sign')
    }
    // Encrypted by libsodium with the public key above and with the secret key.
    const sealed = 'pH9l87UIIS/KJ49E81NrgquIVnO9peScV52pB3TaBxXvozERanHN+XUE+mfi0DGTDdnE8Q=='
    const locked = 'bm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ud2ccYZmonHtF+YdED0I7ELytKKE='
    for (const [name, ciphertext] of Object.entries({ A: sealed, B: locked }))
      expect((await post(`${name}/decrypt`, { ciphertext })).body).toEqual({ plaintext: base64('text') })
  })

  test.each([
    ['A/generate', {}, /type is required/],
    ['A/generate', { type: 'rsa' }, /type must be one of/],
    ['A', { type: 'nacl_box', value: base64('short') }, /32 bytes/],
    ['A', { type: 'nacl_secretbox', value: base64('short') }, /32 bytes/],
    ['1A/generate', { type: 'hs256' }, /name/],
    ['%00/generate', { type: 'hs256' }, /name/],
    ['A', { type: 'hs256' }, /value is required/],
    ['A', { type: 'hs256', value: '!' }, /value/],
    ['A', { type: 'hs256', value: [256] }, /value/],
    ['A', { type: 'hs256', value: base64('short') }, /32 to 1024 bytes/],
    ['A', { type: 'xaes256gcm', value: base64('k'.repeat(33)) }, /32 bytes/],
    ['A', { type: 'es256', value: base64('k'.repeat(32)) }, /PKCS #8/],
  ])('%s with %j are rejected', async (rest, body, sentence) => {
    const refused = await post(rest, body)
    expect(refused.status).toBe(400)
    expect(refused.body.error).toMatch(sentence)
    expect(await platform.sql('select 1 from secret_key')).toEqual([])
  })

  test('require write access and are deleted with the app', async () => {
    await post('A/generate', { type: 'hs256' })
    await platform.createOrg('acme')
    const stranger = await platform.createToken('org', 'acme')
    const reader = await platform.createToken('read', 'personal')
    const bytes = { plaintext: '', ciphertext: '', signature: '', type: 'hs256', value: base64('k'.repeat(32)) }
    const uses = ['A', 'B/generate', 'A/encrypt', 'A/decrypt', 'A/sign', 'A/verify']
    for (const rest of uses) {
      const call = (token: string | null) => platform.call('POST', `${path}/${rest}`, { token, body: bytes })
      expect((await call(null)).status).toBe(401)
      expect((await call(stranger)).status).toBe(403)
      expect((await call(reader)).status).toBe(403)
    }
    for (const url of [path, `${path}/A`]) {
      expect((await platform.call('GET', url, { token: null })).status).toBe(401)
      expect((await platform.call('GET', url, { token: stranger })).status).toBe(403)
      expect((await platform.call('GET', url, { token: reader })).status).toBe(200)
    }
    expect((await platform.call('DELETE', `${path}/A`, { token: reader })).status).toBe(403)
    expect((await post('none/sign', { plaintext: '' })).status).toBe(404)
    await platform.call('DELETE', '/v1/apps/shop')
    await platform.work()
    expect(await platform.sql('select 1 from secret_key')).toEqual([])
  })
})

test('a token for a separate key service is refused with what to use instead, and only to callers who are known', async () => {
  const ask = (options: object) => platform.call('POST', '/v1/tokens/kms', options)
  expect((await ask({ token: null })).status).toBe(401)
  for (const options of [{}, { token: null, headers: { 'berth machine': 'fdaa:0:1:0:1:0:1:2' } }])
    expect(await ask(options)).toMatchObject({
      status: 404,
      body: { error: expect.stringContaining('/v1/apps/{app_name}/secretkeys') },
    })
})
