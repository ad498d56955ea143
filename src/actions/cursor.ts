import { badRequest } from '../model/errors.ts'
import { parseTime, toRfc3339 } from '../model/time.ts'

/** The position of the next page in a list sorted by name. Clients treat it as opaque. */
export function writeCursor(name: string): string {
  return Buffer.from(name).toString('base64url')
}

export function readCursor(field: string, pattern: RegExp, cursor: string): string {
  const name = Buffer.from(cursor, 'base64url').toString()
  if (!pattern.test(name)) throw badRequest(`${field} is not a valid cursor`)
  return name
}

/** A row of a list sorted by the time of the last change. */
export interface Changed {
  id: string
  /** The timestamp as printed by PostgreSQL, with microseconds. */
  updatedText: string
}

export interface ChangePage {
  updatedAfter?: string | undefined
  cursor?: string | undefined
  limit?: number | undefined
}

const maxChanges = 1000

/** Lists the least recently changed rows first, so that clients can poll for rows newer than the last one they saw. */
export async function pageOfChanges<T extends Changed>(
  page: ChangePage,
  idPattern: RegExp,
  find: (place: { after: { at: string; id: string } | null; limit: number }) => Promise<T[]>,
): Promise<{ rows: T[]; nextCursor: string | undefined }> {
  const limit = page.limit ?? maxChanges
  const after = page.cursor
    ? readChangeCursor(page.cursor, idPattern)
    : page.updatedAfter
      ? readTime(page.updatedAfter)
      : null
  // One row more than requested shows whether there is another page.
  const found = await find({ after, limit: limit + 1 })
  const rows = found.slice(0, limit)
  const last = rows.at(-1)
  return { rows, nextCursor: found.length > limit ? writeCursor(`${last!.updatedText} ${last!.id}`) : undefined }
}

const changeForm = /^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\+00) (.+)$/

function readChangeCursor(cursor: string, idPattern: RegExp): { at: string; id: string } {
  const [, at, id] = changeForm.exec(readCursor('cursor', changeForm, cursor)) ?? []
  if (!at || !id || !idPattern.test(id)) throw badRequest('cursor is not a valid cursor')
  return { at, id }
}

/** Sorts after every id, so that rows that changed at exactly that time are not repeated. */
const afterAllIds = 'z'

function readTime(text: string): { at: string; id: string } {
  const time = parseTime(text)
  if (time === undefined || time < 0n) throw badRequest('updated_after must be a time such as 2026-01-31T12:00:00Z')
  return { at: toRfc3339(time), id: afterAllIds }
}
