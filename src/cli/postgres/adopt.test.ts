import { describe, expect, test } from 'vitest'
import { asked, berth, bodies, id, ok, printed, shown } from '../../../test/support/postgres-cli.ts'
import { formatProgress } from './adopt.ts'

const done = { status: 'done', total: 200, done: 200, adopted: [], known: 0, unusable: [] }
const shop = { id, name: 'shop', backups: 3, windows: 1 }

describe('adopt', () => {
  test('follows an adoption that takes long and shows its progress', async () => {
    const running = (count: number) => ok({ ...done, status: 'running', done: count })
    await berth(['adopt', '--org', 'acme'], false, running(13), running(104), ok({ ...done, adopted: [shop] }))
    expect(asked).toEqual(['POST /postgres/adopt', 'GET /postgres/adopt', 'GET /postgres/adopt'])
    expect(bodies).toEqual([{ org_slug: 'acme' }])
    expect(shown).toContain('adopting 200 clusters, 0 %')
    expect(shown).toContain('adopting 200 clusters, 50 %')
    expect(printed.join()).toContain(`berth postgres undelete ${id}`)
  })

  test('names what is damaged and what cannot be adopted', async () => {
    const unusable = [{ id: 'zzzzzzzzzzzzzzzz', reason: 'it has no completed backup' }]
    const adopted = [{ ...shop, problems: ['its write-ahead log is damaged'] }]
    await berth(['adopt'], false, ok({ ...done, adopted, unusable }))
    expect(printed).toContain('Cannot adopt zzzzzzzzzzzzzzzz: it has no completed backup')
    expect(printed).toContain(`shop (${id}): its write-ahead log is damaged`)
    await berth(['adopt'], false, ok({ ...done, unusable }))
    expect(printed.at(-1)).toBe('Adopted none of 1 clusters.')
  })

  test('fails if the adoption ended early, after it printed what was done', async () => {
    const attempt = berth(['adopt'], true, ok({ ...done, done: 1, adopted: [shop], error: 'no answer' }))
    await expect(attempt).rejects.toThrow('the adoption ended early: no answer')
    expect(printed.at(-1)).toContain('"shop"')
  })

  test('counts on a terminal', () => {
    expect(formatProgress({ total: 200, done: 13 }, true)).toBe('adopting 13 of 200 clusters')
    expect(formatProgress({ total: 0, done: 0 }, false)).toBe('reading the repository')
  })
})
