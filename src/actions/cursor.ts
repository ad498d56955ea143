import { badRequest } from '../model/errors.ts'

/** Where the next page of a list by name begins. Callers hand it back as it is. */
export function writeCursor(name: string): string {
  return Buffer.from(name).toString('base64url')
}

export function readCursor(field: string, pattern: RegExp, cursor: string): string {
  const name = Buffer.from(cursor, 'base64url').toString()
  if (!pattern.test(name)) throw badRequest(`${field} is not one that a list answered with`)
  return name
}
