import { type Credential, readCredential } from '../../actions/account/credential.ts'
import { readMacaroon } from '../../model/account/macaroon.ts'
import { unauthorized } from '../../model/errors.ts'

const scheme = /^(?:bearer|flyv1)\s+/i

/** Clients send a few tokens of some hundred bytes. The limits bound the work for callers without a valid token. */
const maxHeaderLength = 65_536
const maxTokens = 32

function read(header: string, secret: Buffer): Credential[] {
  if (header.length > maxHeaderLength)
    throw unauthorized(`the Authorization header is longer than ${maxHeaderLength} characters`)
  const tokens = listTokens(header)
  if (tokens.length > maxTokens) throw unauthorized(`the Authorization header may contain at most ${maxTokens} tokens`)
  const chosen = tokens.length > 1 ? chooseTokens(tokens) : tokens
  if (chosen.some((token) => token === '' || /\s/.test(token))) throw unauthorized('invalid token')
  const credentials = chosen.map((token) => readCredential(token, secret)).filter((one) => one !== undefined)
  if (credentials.length === 0) throw unauthorized('invalid token')
  return credentials
}

/**
 * Lists the tokens of an `Authorization` header. Clients send `Bearer x` or `FlyV1 x`, and people paste
 * `Bearer FlyV1 x`, so schemes are stripped until none is left. Several tokens are separated by commas.
 */
export function listTokens(header: string | undefined): string[] {
  let rest = header?.trim() ?? ''
  if (rest === '') throw unauthorized('missing token: send the header "Authorization: Bearer <token>"')
  if (!scheme.test(rest)) throw unauthorized('the Authorization header must be of the form "Bearer <token>"')
  while (scheme.test(rest)) rest = rest.replace(scheme, '')
  return rest.split(',').map((part) => part.trim())
}

/** Some clients send every token they have, including those of other platforms. Only ours are used. */
function chooseTokens(tokens: string[]): string[] {
  const ours = tokens.filter((token) => token.startsWith('berth_') || readMacaroon(token))
  return ours.length > 0 ? ours : tokens.slice(0, 1)
}

// Clients repeat the same header, and parsing it would take a tenth of the time of a request.
const maxCachedHeaders = 1000
const maxCachedLength = 1024
const caches = new WeakMap<Buffer, Map<string, Credential[]>>()

/** Reads the tokens of a header, of which there is at least one. It does not check that they exist. */
export function readCredentials(header: string | undefined = '', secret: Buffer): Credential[] {
  const cache = caches.get(secret) ?? new Map<string, Credential[]>()
  caches.set(secret, cache)
  const cached = cache.get(header)
  if (cached) return cached
  const credentials = read(header, secret)
  if (cache.size >= maxCachedHeaders) cache.clear()
  if (header.length <= maxCachedLength) cache.set(header, credentials)
  return credentials
}
