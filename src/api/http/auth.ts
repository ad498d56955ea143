import { readMacaroon } from '../../model/account/macaroon.ts'
import { hashToken } from '../../model/account/token.ts'
import { unauthorized } from '../../model/errors.ts'

const scheme = /^(?:bearer|flyv1)\s+/i

/** The token of an `Authorization` header. */
export function readToken(header: string | undefined): string {
  const tokens = listTokens(header)
  const token = tokens.length > 1 ? choose(tokens) : tokens[0]!
  if (token === '' || /\s/.test(token)) throw unauthorized('invalid token')
  return token
}

/**
 * Clients send `Bearer x`, `FlyV1 x`, and people paste `Bearer FlyV1 x`, so schemes are stripped until none is left.
 * There may be several behind them.
 */
export function listTokens(header: string | undefined): string[] {
  let rest = header?.trim() ?? ''
  if (rest === '') throw unauthorized('missing token: send the header "Authorization: Bearer <token>"')
  if (!scheme.test(rest)) throw unauthorized('the Authorization header must be of the form "Bearer <token>"')
  while (scheme.test(rest)) rest = rest.replace(scheme, '')
  return rest.split(',').map((part) => part.trim())
}

/** Some clients send every token they have, those of other platforms too. The first that is one of ours counts. */
function choose(tokens: string[]): string {
  return tokens.find((token) => token.startsWith('berth_') || readMacaroon(token)) ?? tokens[0]!
}

// Clients come again with the same header, and to read it takes a tenth of the time of an answer.
const mostKnown = 1000
const longestKnown = 1024
const known = new Map<string, Buffer>()

/** Whether there is such a token is not said here. */
export function readTokenHash(header = ''): Buffer {
  const before = known.get(header)
  if (before) return before
  const hash = hashToken(readToken(header))
  if (known.size >= mostKnown) known.clear()
  if (header.length <= longestKnown) known.set(header, hash)
  return hash
}
