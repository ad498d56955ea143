import { createPublicKey, verify } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { identityKey } from '../../../src/drivers/machine/identity-key.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const machines = machinesOf(platform, 'shop')

/** Sends the request as the listener for machines does. */
const ask = (address: string, body: object = {}, token: string | null = null) =>
  platform.call('POST', '/v1/tokens/oidc', { body, token, headers: { 'berth machine': address } })
const read = (part: string) => JSON.parse(Buffer.from(part, 'base64url').toString())

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('the identity of a machine', () => {
  test('is issued as a token that others can verify', async () => {
    const id = await machines.started({ name: 'web' })
    const { private_ip, instance_id } = (await machines.call('GET', id)).body
    const before = Math.floor(Date.now() / 1000)
    const reply = await ask(private_ip, { aud: 'sts.amazonaws.com', aws_principal_tags: true })
    expect(reply).toMatchObject({ status: 200, headers: { 'content-type': 'text/plain' } })
    const [header, claims, signature] = reply.body.split('.')
    const { keys } = (await platform.call('GET', '/.well-known/jwks.json', { token: null })).body
    const key = createPublicKey({
      key: keys.find(({ kid }: { kid: string }) => kid === read(header).kid),
      format: 'jwk',
    })
    expect(verify('sha256', Buffer.from(`${header}.${claims}`), key, Buffer.from(signature, 'base64url'))).toBe(true)
    const said = read(claims)
    expect(said).toMatchObject({
      iss: 'https://berth.example',
      sub: 'personal:shop:web',
      aud: 'sts.amazonaws.com',
      org_name: 'personal',
      app_name: 'shop',
      machine_id: id,
      machine_name: 'web',
      machine_version: instance_id,
      region: 'local',
      image: 'nginx',
      image_digest: expect.stringMatching(/^sha256:/),
      'https://aws.amazon.com/tags': { principal_tags: { machine_id: [id] } },
    })
    expect(said.iat).toBeGreaterThanOrEqual(before)
    expect(said.exp - said.iat).toBe(600)
    expect(read((await ask(private_ip)).body.split('.')[1])).toMatchObject({ aud: 'https://berth.example/personal' })
    expect(read((await ask(private_ip)).body.split('.')[1]).jti).not.toBe(said.jti)
  })

  test('is published in the discovery document', async () => {
    const reply = await platform.call('GET', '/.well-known/openid-configuration', { token: null })
    expect(reply.body).toMatchObject({
      issuer: 'https://berth.example',
      jwks_uri: 'https://berth.example/.well-known/jwks.json',
      id_token_signing_alg_values_supported: ['RS256'],
    })
    expect((await platform.callSandbox('GET', '/.well-known/jwks.json')).status).toBe(404)
  })

  test('is refused to others', async () => {
    const id = await machines.started()
    const { private_ip } = (await machines.call('GET', id)).body
    const elsewhere = private_ip.replace(/:[0-9a-f]+:2$/, ':1:2')
    for (const address of [elsewhere, '::1', '127.0.0.1', '']) expect((await ask(address)).status, address).toBe(403)
    expect((await platform.call('POST', '/v1/tokens/oidc', { token: null })).status).toBe(401)
    expect((await platform.call('POST', '/v1/tokens/oidc', { token: 'berth_unknown' })).status).toBe(401)
    expect(await platform.call('POST', '/v1/tokens/oidc')).toMatchObject({
      status: 403,
      body: { error: expect.stringContaining('_api.internal') },
    })
    await machines.call('DELETE', id, '?force=true')
    await machines.settle()
    expect((await ask(private_ip)).status).toBe(403)
  })

  test.each([{ aud: 5 }, { aws_principal_tags: 'yes' }, { aud: 'x'.repeat(1025) }])(
    'is refused for %j',
    async (body) => {
      expect((await platform.call('POST', '/v1/tokens/oidc', { body })).status).toBe(400)
    },
  )
})

describe('the signing key', () => {
  const path = mkdtempSync(`${tmpdir()}/berth-key-`)
  afterAll(() => rmSync(path, { recursive: true, force: true }))

  test('is created once per home and stored encrypted', async () => {
    const secret = Buffer.alloc(32, 1)
    const [one, other] = await Promise.all([identityKey({ path }, secret)(), identityKey({ path }, secret)()])
    expect(one.equals(other)).toBe(true)
    expect((await identityKey({ path }, secret)()).equals(one)).toBe(true)
    const bytes = readFileSync(`${path}/identity-key`)
    expect(bytes.includes(one.export({ type: 'pkcs8', format: 'der' }).subarray(0, 32))).toBe(false)
    await expect(identityKey({ path }, Buffer.alloc(32, 2))()).rejects.toThrow()
  })
})
