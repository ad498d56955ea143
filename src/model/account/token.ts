import { createHmac, hash } from 'node:crypto'
import { type Static, Type } from 'typebox'
import { base62, randomText } from '../ids.ts'
import type { Micros } from '../time.ts'
import { slugPattern } from './org.ts'

export const tokenKinds = ['root', 'org', 'read', 'sandbox'] as const
/** App tokens are created through the app's own operation, not through the token operations. */
export type TokenKind = (typeof tokenKinds)[number] | 'app'

/** The text format of a token, which does not affect its permissions. */
const tokenFormats = ['berth', 'fm2'] as const

export interface Token {
  id: string
  kind: TokenKind
  orgId: string | null
  orgSlug: string | null
  sandbox: string | null
  name: string
  createdAt: Micros
  expiresAt: Micros | null
  revokedAt: Micros | null
}

/** The lifetime of tokens for which clients ask without choosing one. */
export const defaultTokenDays = 90
export const defaultTokenSeconds = defaultTokenDays * 86_400

/** The id of the token that the configuration sets. */
export const rootTokenId = 'root'

/** The token that a request was made with. */
export interface Caller {
  tokenId: string
  kind: TokenKind
  /** Null for a root token, which may see every organization. */
  orgId: string | null
  sandbox: string | null
}

/** flyctl shows the user's email address. Berth has no users, so the address is derived from the token. */
export function callerEmail(caller: Pick<Caller, 'tokenId' | 'kind'>): string {
  return `${caller.kind}-${caller.tokenId}@berth.invalid`
}

/** 43 characters of a 62-character alphabet carry 256 bits. */
export function newTokenText(): string {
  return `berth_${randomText(43, base62)}`
}

/** The token with which a sandbox or machine calls the API about itself. It is derived from the platform's key, so it is not stored. */
export function insideToken(key: Buffer, id: string): string {
  let rest = BigInt(`0x${createHmac('sha256', key).update(`inside ${id}`).digest('hex')}`)
  let text = ''
  for (; text.length < 43; rest /= 62n) text += base62[Number(rest % 62n)]
  return `berth_${text}`
}

/**
 * The stored form of a token. Looking up a hash leaks no timing information about the token, and 256 random bits need
 * no slow hash.
 */
export function hashToken(text: string): Buffer {
  return hash('sha256', text, 'buffer')
}

export const CreateToken = Type.Object({
  org_slug: Type.Optional(Type.String({ description: 'The organization it is for; every kind but `root` needs one.' })),
  kind: Type.Enum([...tokenKinds], {
    description: '`root` may do all, `org` all in one organization, `read` only reads there, `sandbox` one sandbox.',
    examples: ['org'],
  }),
  sandbox: Type.Optional(
    Type.String({
      pattern: slugPattern,
      description: 'The sandbox a `sandbox` token is for.',
      refusal: 'sandbox must be 1 to 63 lowercase letters, digits and dashes, not starting or ending with a dash',
    }),
  ),
  format: Type.Optional(
    Type.Enum([...tokenFormats], {
      description: '`berth` when omitted; `fm2` is the form that flyctl demands for its Postgres commands.',
    }),
  ),
  name: Type.Optional(Type.String({ maxLength: 100, description: 'A label that is shown in the list of tokens.' })),
  expires_in_seconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 3_153_600_000, // a hundred years, well within the range of timestamptz
      description: 'Lifetime in seconds; the token does not expire when omitted.',
    }),
  ),
})
export type CreateToken = Static<typeof CreateToken>
