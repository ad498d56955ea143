import { badRequest } from '../model/errors.ts'
import { parseTime, toRfc3339 } from '../model/time.ts'

/** Where the next page of a list by name begins. Callers hand it back as it is. */
export function writeCursor(name: string): string {
  return Buffer.from(name).toString('base64url')
}

export function readCursor(field: string, pattern: RegExp, cursor: string): string {
  const name = Buffer.from(cursor, 'base64url').toString()
  if (!pattern.test(name)) throw badRequest(`${field} is not one that a list answered with`)
  return name
}

/** A row of a list by the time of the last change. */
export interface Changed {
  id: string
  /** As the database writes it. */
  updatedText: string
}

export interface ChangePage {
  updatedAfter?: string | undefined
  cursor?: string | undefined
  limit?: number | undefined
}

const mostChanges = 1000

/** From what changed first, so that whoever follows along asks for what is newer than the last he saw. */
export async function pageOfChanges<T extends Changed>(
  page: ChangePage,
  idPattern: RegExp,
  find: (place: { after: { at: string; id: string } | null; limit: number }) => Promise<T[]>,
): Promise<{ rows: T[]; nextCursor: string | undefined }> {
  const limit = page.limit ?? mostChanges
  const after = page.cursor
    ? readChangeCursor(page.cursor, idPattern)
    : page.updatedAfter
      ? readTime(page.updatedAfter)
      : null
  // One more than asked for tells whether another page follows.
  const found = await find({ after, limit: limit + 1 })
  const rows = found.slice(0, limit)
  const last = rows.at(-1)
  return { rows, nextCursor: found.length > limit ? writeCursor(`${last!.updatedText} ${last!.id}`) : undefined }
}

const changeForm = /^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\+00) (.+)$/

function readChangeCursor(cursor: string, idPattern: RegExp): { at: string; id: string } {
  const [, at, id] = changeForm.exec(readCursor('cursor', changeForm, cursor)) ?? []
  if (!at || !id || !idPattern.test(id)) throw badRequest('cursor is not one that a list answered with')
  return { at, id }
}

/** Behind every id, so that what changed just then is not told again. */
const behindAll = 'z'

function readTime(text: string): { at: string; id: string } {
  const time = parseTime(text)
  if (time === undefined || time < 0n) throw badRequest('updated_after must be a time such as 2026-01-31T12:00:00Z')
  return { at: toRfc3339(time), id: behindAll }
}
