import { createPublicKey, generateKeyPairSync, verify } from 'node:crypto'
import { expect, test } from 'vitest'
import { identityClaims, publicJwk, signToken, thumbprint } from './identity.ts'

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
const identity = {
  org_id: 'o1',
  org_name: 'acme',
  app_id: 'a1',
  app_name: 'shop',
  machine_id: '148e123456789a',
  machine_name: 'web',
  machine_version: '01J',
  region: 'ams',
  image: 'nginx',
  image_digest: 'sha256:1',
}
const about = { issuer: 'https://berth.example', now: 1_000, id: 'j1' }

test('a token can be verified with the public key', () => {
  const [header, claims, signature] = signToken(privateKey, { sub: 'x' }).split('.') as [string, string, string]
  const jwk = publicJwk(privateKey)
  expect(JSON.parse(Buffer.from(header, 'base64url').toString())).toEqual({ alg: 'RS256', kid: jwk.kid, typ: 'JWT' })
  const key = createPublicKey({ key: jwk, format: 'jwk' })
  expect(verify('sha256', Buffer.from(`${header}.${claims}`), key, Buffer.from(signature, 'base64url'))).toBe(true)
  expect(JSON.stringify(jwk)).not.toContain('"d"')
})

// The example of RFC 7638.
test('the key id is the thumbprint of RFC 7638', () => {
  const n =
    '0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw'
  expect(thumbprint({ kty: 'RSA', n, e: 'AQAB' })).toBe('NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs')
})

test('the claims contain machine, audience and expiry', () => {
  expect(identityClaims(identity, {}, about)).toEqual({
    iss: 'https://berth.example',
    sub: 'acme:shop:web',
    aud: 'https://berth.example/acme',
    iat: 1_000,
    nbf: 1_000,
    exp: 1_600,
    jti: 'j1',
    ...identity,
  })
  const wish = { aud: 'sts.amazonaws.com', aws_principal_tags: true }
  expect(identityClaims(identity, wish, about)).toMatchObject({
    aud: 'sts.amazonaws.com',
    'https://aws.amazon.com/tags': { principal_tags: { app_name: ['shop'], machine_id: ['148e123456789a'] } },
  })
})
