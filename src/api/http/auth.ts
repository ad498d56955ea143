import { readMacaroon } from '../../model/account/macaroon.ts'
import { hashToken } from '../../model/account/token.ts'
import { unauthorized } from '../../model/errors.ts'

const scheme = /^(?:bearer|flyv1)\s+/i

/** Clients send a few tokens of some hundred bytes. The limits bound the work for callers without a valid token. */
const maxHeaderLength = 65_536
const maxTokens = 32

function readToken(header: string | undefined): string {
  if (header !== undefined && header.length > maxHeaderLength)
    throw unauthorized(`the Authorization header is longer than ${maxHeaderLength} characters`)
  const tokens = listTokens(header)
  if (tokens.length > maxTokens) throw unauthorized(`the Authorization header may contain at most ${maxTokens} tokens`)
  const token = tokens.length > 1 ? chooseToken(tokens) : tokens[0]!
  if (token === '' || /\s/.test(token)) throw unauthorized('invalid token')
  return token
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

/** Some clients send every token they have, including those of other platforms. The first one of ours is used. */
function chooseToken(tokens: string[]): string {
  return tokens.find((token) => token.startsWith('berth_') || readMacaroon(token)) ?? tokens[0]!
}

// Clients repeat the same header, and parsing it would take a tenth of the time of a request.
const maxCachedHeaders = 1000
const maxCachedLength = 1024
const hashByHeader = new Map<string, Buffer>()

/** Hashes the token of a header. It does not check that the token exists. */
export function readTokenHash(header = ''): Buffer {
  const cached = hashByHeader.get(header)
  if (cached) return cached
  const hash = hashToken(readToken(header))
  if (hashByHeader.size >= maxCachedHeaders) hashByHeader.clear()
  if (header.length <= maxCachedLength) hashByHeader.set(header, hash)
  return hash
}
