import { isUtf8 } from 'node:buffer'
import type { FastifyInstance } from 'fastify'
import { badRequest } from '../../model/errors.ts'
import { isDeeperThan } from '../../model/json-depth.ts'

/** The content type given to requests whose body is passed on as a stream. It is set by the server, never by clients. */
export const rawContentType = 'application/x-berth-raw'

/** Reads every body as JSON: curl sends a form type by default, and some clients send no content type at all. */
export function acceptAnyBodyAsJson(server: FastifyInstance): void {
  server.removeAllContentTypeParsers()
  server.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, bytes, done) =>
    done(null, readJson(bytes as Buffer)),
  )
  server.addContentTypeParser(rawContentType, (_request, stream, done) => done(null, stream))
}

/** No operation has a body that is nested half as deep. */
const maxDepth = 64

/** An escape of half a surrogate pair, which is not text when the other half is missing. */
const surrogateEscape = /\\u[dD][89a-fA-F]/

/** Returns an error instead of throwing it, because an invalid token must be reported before an invalid body. */
function readJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) return badRequest('the body is not valid UTF-8')
  const text = bytes.toString()
  if (text.trim() === '') return {}
  if (isDeeperThan(text, maxDepth)) return badRequest(`the body is nested deeper than ${maxDepth} levels`)
  try {
    const value: unknown = JSON.parse(text)
    if (surrogateEscape.test(text) && !isWellFormed(value)) {
      return badRequest('the body contains half of a surrogate pair, which is not text')
    }
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
    return badRequest('the body must be a JSON object')
  } catch {
    return badRequest('the body is not valid JSON')
  }
}

function isWellFormed(value: unknown): boolean {
  if (typeof value === 'string') return value.isWellFormed()
  if (typeof value !== 'object' || value === null) return true
  return Object.entries(value).every(([key, inner]) => key.isWellFormed() && isWellFormed(inner))
}

/** Removes fields that are null, at any depth. */
export function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (typeof value !== 'object' || value === null) return value
  const present = Object.entries(value).filter(([, inner]) => inner !== null)
  return Object.fromEntries(present.map(([key, inner]) => [key, withoutNulls(inner)]))
}
