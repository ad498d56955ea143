import { createHmac, hash } from 'node:crypto'
import { type Static, Type } from 'typebox'
import { base62, randomText } from '../ids.ts'
import type { Micros } from '../time.ts'
import { slugPattern } from './org.ts'

export const tokenKinds = ['root', 'org', 'read', 'sandbox'] as const
/** Those of one app are made by an operation of the app. */
export type TokenKind = (typeof tokenKinds)[number] | 'app'

/** How the text of a token looks; what it may do is the same. */
export const tokenFormats = ['berth', 'fm2'] as const

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

/** Who is asking. */
export interface Caller {
  tokenId: string
  kind: TokenKind
  /** Null for root, which may see every organization. */
  orgId: string | null
  sandbox: string | null
}

/** Clients made for platforms with people in them want to show one; here there are tokens. */
export function callerEmail(caller: Pick<Caller, 'tokenId' | 'kind'>): string {
  return `${caller.kind}-${caller.tokenId}@berth.invalid`
}

/** 43 letters of 62 carry the 256 bits of the 32 random bytes that are promised. */
export function newTokenText(): string {
  return `berth_${randomText(43, base62)}`
}

/** With which a sandbox or a machine asks about itself. Only the platform can work it out, so that it need not be kept. */
export function insideToken(key: Buffer, id: string): string {
  let rest = BigInt(`0x${createHmac('sha256', key).update(`inside ${id}`).digest('hex')}`)
  let text = ''
  for (; text.length < 43; rest /= 62n) text += base62[Number(rest % 62n)]
  return `berth_${text}`
}

/**
 * What the platform keeps of a token. A lookup by hash takes the same time whether a guess was nearly right or not,
 * and 256 random bits need no slow hash.
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
  name: Type.Optional(Type.String({ maxLength: 100, description: 'A note that tells tokens apart in the list.' })),
  expires_in_seconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 3_153_600_000, // a hundred years: longer would leave what a timestamp column can hold
      description: 'The token stops working after this long; never when omitted.',
    }),
  ),
})
export type CreateToken = Static<typeof CreateToken>
