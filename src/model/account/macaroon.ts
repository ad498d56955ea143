// Tokens in the format that flyctl requires: `fm2_` and the base64 of a macaroon in MessagePack. A macaroon is a chain: its
// signature covers its caveats one after the other, each with the signature so far as the key. So whoever holds a token can
// append caveats that restrict it, and nobody can remove one.
//
// The platform stores the hash of a token as it was issued. The id in the nonce tells how many caveats it had then. Those
// describe what the stored row of the token enforces anyway. A token with more of them is verified with a key that is
// derived from the platform's secret, and reduced to the token that was issued and the caveats that were appended.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { type Caveat, earliestEnd, readCaveats } from './caveat.ts'
import { type Packed, pack, packArray, splitArray, unpack } from './msgpack.ts'

/** Clients discard tokens with any other location. */
const location = 'https://api.fly.io/v1'

const prefix = 'fm2_'

/** Distinguishes Berth's tokens from others that a client sends in the same header. */
const kidPattern = /^berth\/([a-z0-9]{1,32})(?:\/([0-9]))?$/

const caveatTypes = { organization: 0, apps: 3, validity: 4 } as const

/** The bits of an organization caveat: read, write, create, delete, control. */
const allActions = 31
const reading = 1

export interface MacaroonInput {
  tokenId: string
  organization?: { numericId: number; readOnly: boolean }
  /** The numeric id of the only app. */
  app?: number
  /** Seconds since the epoch. */
  validity?: { from: number; until: number }
}

export interface Macaroon {
  tokenId: string
  organization: number | undefined
  /** Seconds since the epoch. */
  until: number | undefined
}

/** `verifyAttenuation` needs the same secret for tokens that are derived from this one. */
export function mintMacaroon(input: MacaroonInput, secret: Buffer, random = randomBytes(16)): string {
  const caveats = caveatsOf(input)
  const nonce = pack([Buffer.from(`berth/${input.tokenId}/${caveats.length}`), random, false])
  return encode(
    nonce,
    caveats.flat(1).map((part) => pack(part)),
    chain(signNonce(secret, nonce), caveats.map(pack)),
  )
}

function caveatsOf({ organization, app, validity }: MacaroonInput): [type: number, body: Packed][] {
  const caveats: [number, Packed][] = []
  if (organization) {
    const mask = organization.readOnly ? reading : allActions
    caveats.push([caveatTypes.organization, [organization.numericId, mask]])
  }
  if (app !== undefined) caveats.push([caveatTypes.apps, [new Map([[app, allActions]])]])
  if (validity) caveats.push([caveatTypes.validity, [validity.from, validity.until]])
  return caveats
}

/** The nonce holds random bytes, so no two tokens begin alike. */
function signNonce(secret: Buffer, nonce: Buffer): Buffer {
  const key = sign(secret, Buffer.from('macaroon'))
  return sign(key, nonce)
}

/** Continues a signature over packed caveats. */
function chain(tail: Buffer, caveats: readonly Buffer[]): Buffer {
  return caveats.reduce((key, caveat) => sign(key, caveat), tail)
}

function sign(key: Buffer, text: Buffer): Buffer {
  return createHmac('sha256', key).update(text).digest()
}

/** `parts` are the packed types and bodies of the caveats. */
function encode(nonce: Buffer, parts: Buffer[], tail: Buffer): string {
  return prefix + packArray([nonce, pack(location), packArray(parts), pack(tail)]).toString('base64')
}

/** Caveats that were appended to a token after it was issued. */
export interface Attenuation {
  caveats: readonly Caveat[]
  /** When the token ends because of them, in milliseconds since the epoch; infinite when they do not limit the time. */
  until: number
  /** Distinguishes tokens with the same origin; it does not reveal the token. */
  digest: string
}

export interface IssuedForm {
  /** The token as it was issued. */
  text: string
  attenuation: Attenuation | undefined
}

/**
 * Separates the token that was issued from what was appended to it. Undefined when the signature does not match, when a
 * caveat is unknown, or when there are too many. A token without appended caveats is not verified: its hash is looked up.
 */
export function verifyAttenuation(text: string, secret: Buffer): IssuedForm | undefined {
  const token = split(text)
  if (token?.issuedCaveats === undefined) return { text, attenuation: undefined }
  const { nonce, parts, tail, issuedCaveats } = token
  const count = parts.length / 2
  if (count === issuedCaveats) return { text, attenuation: undefined }
  if (count < issuedCaveats || !Number.isInteger(count)) return undefined
  const pairs = Array.from({ length: count }, (_, index) => packArray(parts.slice(2 * index, 2 * index + 2)))
  const issuedTail = chain(signNonce(secret, nonce), pairs.slice(0, issuedCaveats))
  const appended = pairs.slice(issuedCaveats)
  if (!isSame(chain(issuedTail, appended), tail)) return undefined
  const caveats = readCaveats(appended.map((pair) => unpack(pair) as [Packed, Packed]))
  if (!caveats) return undefined
  return {
    text: encode(nonce, parts.slice(0, 2 * issuedCaveats), issuedTail),
    attenuation: {
      caveats,
      until: earliestEnd(caveats) * 1000,
      digest: createHash('sha256').update(tail).digest('base64url'),
    },
  }
}

function isSame(one: Buffer, other: Buffer): boolean {
  return one.length === other.length && timingSafeEqual(one, other)
}

interface Split {
  tokenId: string
  nonce: Buffer
  /** Packed types and bodies, which alternate. */
  parts: Buffer[]
  tail: Buffer
  /** How many of the caveats the token was issued with; undefined for tokens of earlier versions, which cannot be attenuated. */
  issuedCaveats: number | undefined
}

/** The texts of a header are limited before; this bounds the work for a single token. */
const maxBytes = 16_384

function split(text: string): Split | undefined {
  if (!text.startsWith(prefix)) return undefined
  const bytes = Buffer.from(text.slice(prefix.length), 'base64')
  const [nonce, place, caveats, tail, ...more] = (bytes.length <= maxBytes && splitArray(bytes)) || []
  if (!nonce || !place || !caveats || !tail || more.length > 0 || unpack(place) !== location) return undefined
  const kid = kidOf(nonce)
  const parts = splitArray(caveats)
  const signature = unpack(tail)
  if (!kid || !parts || !Buffer.isBuffer(signature)) return undefined
  return { ...kid, nonce, parts, tail: signature }
}

function kidOf(nonce: Buffer): Pick<Split, 'tokenId' | 'issuedCaveats'> | undefined {
  const fields = unpack(nonce)
  const kid = Array.isArray(fields) && Buffer.isBuffer(fields[0]) ? fields[0].toString('latin1') : ''
  const [, tokenId, count] = kidPattern.exec(kid) ?? []
  return tokenId === undefined ? undefined : { tokenId, issuedCaveats: count === undefined ? undefined : Number(count) }
}

/** Decodes a token of this platform without verifying it; undefined for anything else. */
export function readMacaroon(text: string): Macaroon | undefined {
  const token = split(text)
  if (!token) return undefined
  return {
    tokenId: token.tokenId,
    organization: numberOf(token.parts, caveatTypes.organization, 0),
    until: numberOf(token.parts, caveatTypes.validity, 1),
  }
}

/** The form in which clients compare tokens: the decoded macaroon, or the text of any other token. */
export function tokenBytes(text: string): Buffer {
  return text.startsWith(prefix) ? Buffer.from(text.slice(prefix.length), 'base64') : Buffer.from(text)
}

function numberOf(parts: Buffer[], type: number, position: number): number | undefined {
  const at = parts.findIndex((part, index) => index % 2 === 0 && unpack(part) === type)
  const body = at < 0 ? undefined : unpack(parts[at + 1] ?? Buffer.alloc(0))
  const value = Array.isArray(body) ? body[position] : undefined
  return typeof value === 'number' ? value : undefined
}
