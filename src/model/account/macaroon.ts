// Tokens in the form that some clients insist on: `fm2_` and the base64 of a macaroon in MessagePack. Such a client
// decodes the token before it sends it, to drop what has expired. To the platform the text is a token like any other:
// it is kept as a hash, so one that somebody added a caveat to is an unknown token and opens nothing.
import { createHmac, randomBytes } from 'node:crypto'
import { type Packed, pack, unpack } from './msgpack.ts'

/** Where clients believe that permissions come from; they throw tokens of other places away. */
const location = 'https://api.fly.io/v1'

const prefix = 'fm2_'

/** Tells our tokens from those of others that a client sends along. */
const kidPrefix = 'berth/'

const caveatTypes = { organization: 0, validity: 4 } as const

/** What a caveat of an organization allows: reading, writing, creating, deleting, controlling. */
const everything = 31
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

/** The key is made up and forgotten: it makes the last bytes of the token as hard to guess as its hash needs. */
export function mintMacaroon(input: MacaroonInput, key: Buffer = randomBytes(32), random = randomBytes(16)): string {
  const nonce = [Buffer.from(`${kidPrefix}${input.tokenId}`), random, false]
  const caveats = caveatsOf(input)
  const tail = caveats.reduce((secret: Buffer, caveat) => sign(secret, pack(caveat)), sign(key, pack(nonce)))
  return prefix + pack([nonce, location, caveats.flat(1), tail]).toString('base64')
}

function caveatsOf({ organization, validity }: MacaroonInput): [type: number, body: Packed][] {
  const caveats: [number, Packed][] = []
  if (organization) {
    const mask = organization.readOnly ? reading : everything
    caveats.push([caveatTypes.organization, [organization.numericId, mask]])
  }
  if (validity) caveats.push([caveatTypes.validity, [validity.from, validity.until]])
  return caveats
}

function sign(key: Buffer, text: Buffer): Buffer {
  return createHmac('sha256', key).update(text).digest()
}

/** What a token of this platform says about itself, which proves nothing; undefined for anything else. */
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

/** Of a token in this form, what clients compare it by; of another its text. */
export function tokenBytes(text: string): Buffer {
  return text.startsWith(prefix) ? Buffer.from(text.slice(prefix.length), 'base64') : Buffer.from(text)
}

/** Types and bodies take turns. */
function numberOf(caveats: Packed[], type: number, place: number): number | undefined {
  const at = caveats.findIndex((value, index) => index % 2 === 0 && value === type)
  const body = at < 0 ? undefined : caveats[at + 1]
  const value = Array.isArray(body) ? body[place] : undefined
  return typeof value === 'number' ? value : undefined
}
