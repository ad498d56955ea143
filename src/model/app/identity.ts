// Machine identities for external services: OpenID Connect tokens signed with the platform's key.
import { createPublicKey, hash, type KeyObject, sign } from 'node:crypto'
import { type Static, Type } from 'typebox'

export const IdentityWish = Type.Object({
  aud: Type.Optional(
    Type.String({
      maxLength: 1024,
      description: 'The audience (`aud`) of the token; issuer and organization when omitted.',
    }),
  ),
  aws_principal_tags: Type.Optional(Type.Boolean({ description: 'Also include the claims as AWS principal tags.' })),
})
export type IdentityWish = Static<typeof IdentityWish>

/** The claims about a machine. */
export interface Identity {
  org_id: string
  /** The slug of the organization. */
  org_name: string
  app_id: string
  app_name: string
  machine_id: string
  machine_name: string
  machine_version: string
  region: string
  image: string
  image_digest: string
}

const lifeSeconds = 600

export function identityClaims(
  identity: Identity,
  wish: IdentityWish,
  { issuer, now, id }: { issuer: string; now: number; id: string },
): Record<string, unknown> {
  const { org_name, app_name, machine_name } = identity
  return {
    iss: issuer,
    sub: `${org_name}:${app_name}:${machine_name}`,
    aud: wish.aud || `${issuer}/${org_name}`,
    iat: now,
    nbf: now,
    exp: now + lifeSeconds,
    jti: id,
    ...identity,
    ...(wish.aws_principal_tags && { 'https://aws.amazon.com/tags': awsTags(identity) }),
  }
}

/** AWS expects a list of values for each tag. */
function awsTags({ org_name, app_name, machine_id, machine_name, region }: Identity) {
  const tags = { org_name, app_name, machine_id, machine_name, region }
  const entries = Object.entries(tags).map(([key, value]) => [key, [value]])
  return { principal_tags: Object.fromEntries(entries), transitive_tag_keys: Object.keys(tags) }
}

export function signToken(key: KeyObject, claims: object): string {
  const header = { alg: 'RS256', kid: publicJwk(key).kid, typ: 'JWT' }
  const text = [header, claims].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.')
  return `${text}.${sign('sha256', Buffer.from(text), key).toString('base64url')}`
}

/** The public key, with which anyone can verify tokens. */
export function publicJwk(key: KeyObject) {
  const { kty, n, e } = createPublicKey(key).export({ format: 'jwk' }) as RsaKey
  return { kty, use: 'sig', alg: 'RS256', kid: thumbprint({ kty, n, e }), n, e }
}

type RsaKey = Record<'kty' | 'n' | 'e', string>

/** The key id of RFC 7638, which hashes these fields in this order. */
export function thumbprint({ e, kty, n }: RsaKey): string {
  return hash('sha256', JSON.stringify({ e, kty, n }), 'base64url')
}

/** The OpenID Connect discovery document. */
export function discovery(issuer: string) {
  return {
    issuer,
    jwks_uri: `${issuer}/.well-known/jwks.json`,
    response_types_supported: ['id_token'],
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ['RS256'],
    scopes_supported: ['openid'],
    claims_supported: [
      ...['iss', 'sub', 'aud', 'iat', 'nbf', 'exp', 'jti', 'org_id', 'org_name', 'app_id', 'app_name', 'machine_id'],
      ...['machine_name', 'machine_version', 'region', 'image', 'image_digest'],
    ],
  }
}
