import type { FastifyInstance } from 'fastify'
import { badRequest } from '../../model/errors.ts'

/** The content type given to requests whose body is passed on as a stream. It is set by the server, never by clients. */
export const rawContentType = 'application/x-berth-raw'

/** Reads every body as JSON: curl sends a form type by default, and some clients send no content type at all. */
export function acceptAnyBodyAsJson(server: FastifyInstance): void {
  server.removeAllContentTypeParsers()
  server.addContentTypeParser('*', { parseAs: 'string' }, (_request, text, done) =>
    done(null, readJson(text as string)),
  )
  server.addContentTypeParser(rawContentType, (_request, stream, done) => done(null, stream))
}

/** Returns an error instead of throwing it, because an invalid token must be reported before an invalid body. */
function readJson(text: string): unknown {
  if (text.trim() === '') return {}
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
    return badRequest('the body must be a JSON object')
  } catch {
    return badRequest('the body is not valid JSON')
  }
}

/** Removes fields that are null, at any depth. */
export function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (typeof value !== 'object' || value === null) return value
  const present = Object.entries(value).filter(([, inner]) => inner !== null)
  return Object.fromEntries(present.map(([key, inner]) => [key, withoutNulls(inner)]))
}
