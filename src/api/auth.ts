import { unauthorized } from '../model/errors.ts'
import { hashToken } from '../model/token.ts'

const scheme = /^(?:bearer|flyv1)\s+/i

/**
 * The token of an `Authorization` header. Clients send `Bearer x`, `FlyV1 x`, and people paste `Bearer FlyV1 x`, so
 * schemes are stripped until none is left.
 */
export function readToken(header: string | undefined): string {
  let rest = header?.trim() ?? ''
  if (rest === '') throw unauthorized('missing token: send the header "Authorization: Bearer <token>"')
  if (!scheme.test(rest)) throw unauthorized('the Authorization header must be of the form "Bearer <token>"')
  while (scheme.test(rest)) rest = rest.replace(scheme, '')
  if (rest === '' || /\s/.test(rest)) throw unauthorized('invalid token')
  return rest
}

export function readTokenHash(header: string | undefined): Buffer {
  return hashToken(readToken(header))
}
