// Tokens in the format that flyctl requires: `fm2_` and the base64 of a macaroon in MessagePack. The client decodes the
// token to drop expired ones before it sends it. The platform treats the text as opaque and stores its hash, so a token
// with an added caveat is an unknown token.
import { createHmac, randomBytes } from 'node:crypto'
import { type Packed, pack, unpack } from './msgpack.ts'

/** Clients discard tokens with any other location. */
const location = 'https://api.fly.io/v1'

const prefix = 'fm2_'

/** Distinguishes Berth's tokens from others that a client sends in the same header. */
const kidPrefix = 'berth/'

const caveatTypes = { organization: 0, validity: 4 } as const

/** The bits of an organization caveat: read, write, create, delete, control. */
const allActions = 31
const reading = 1

export interface MacaroonInput {
  tokenId: string
  organization?: { numericId: number; readOnly: boolean }
  /** Seconds since the epoch. */
  validity?: { from: number; until: number }
}

export interface Macaroon {
  tokenId: string
  organization: number | undefined
  /** Seconds since the epoch. */
  until: number | undefined
}

/** The signing key is random and discarded: the signature only has to be unguessable, because tokens are looked up by hash. */
export function mintMacaroon(input: MacaroonInput, key: Buffer = randomBytes(32), random = randomBytes(16)): string {
  const nonce = [Buffer.from(`${kidPrefix}${input.tokenId}`), random, false]
  const caveats = caveatsOf(input)
  const tail = caveats.reduce((secret: Buffer, caveat) => sign(secret, pack(caveat)), sign(key, pack(nonce)))
  return prefix + pack([nonce, location, caveats.flat(1), tail]).toString('base64')
}

function caveatsOf({ organization, validity }: MacaroonInput): [type: number, body: Packed][] {
  const caveats: [number, Packed][] = []
  if (organization) {
    const mask = organization.readOnly ? reading : allActions
    caveats.push([caveatTypes.organization, [organization.numericId, mask]])
  }
  if (validity) caveats.push([caveatTypes.validity, [validity.from, validity.until]])
  return caveats
}

function sign(key: Buffer, text: Buffer): Buffer {
  return createHmac('sha256', key).update(text).digest()
}

/** Decodes a token of this platform without verifying it; undefined for anything else. */
export function readMacaroon(text: string): Macaroon | undefined {
  if (!text.startsWith(prefix)) return undefined
  const whole = unpack(Buffer.from(text.slice(prefix.length), 'base64'))
  if (!Array.isArray(whole) || whole.length !== 4 || whole[1] !== location) return undefined
  const [nonce, , caveats] = whole
  const kid = Array.isArray(nonce) && Buffer.isBuffer(nonce[0]) ? nonce[0].toString('latin1') : ''
  if (!kid.startsWith(kidPrefix) || !Array.isArray(caveats)) return undefined
  return {
    tokenId: kid.slice(kidPrefix.length),
    organization: numberOf(caveats, caveatTypes.organization, 0),
    until: numberOf(caveats, caveatTypes.validity, 1),
  }
}

/** The form in which clients compare tokens: the decoded macaroon, or the text of any other token. */
export function tokenBytes(text: string): Buffer {
  return text.startsWith(prefix) ? Buffer.from(text.slice(prefix.length), 'base64') : Buffer.from(text)
}

/** Caveats are a flat list in which types and bodies alternate. */
function numberOf(caveats: Packed[], type: number, position: number): number | undefined {
  const at = caveats.findIndex((value, index) => index % 2 === 0 && value === type)
  const body = at < 0 ? undefined : caveats[at + 1]
  const value = Array.isArray(body) ? body[position] : undefined
  return typeof value === 'number' ? value : undefined
}
