import { expect, test } from 'vitest'
import { type Answer, asked, berth, bodies, id, ok, printed, shown } from '../../../test/support/postgres-cli.ts'

const url = 'postgresql://owner:secret@db.example.com/shop'

function imported(changes: object = {}) {
  return {
    id: 'a123456789abcdef',
    status: 'checking',
    source: 'postgresql://owner@db.example.com:5432/shop',
    database: 'fly-db',
    live: false,
    jobs: 4,
    tables_done: 0,
    tables_total: null,
    bytes_done: 0,
    bytes_total: null,
    current_table: null,
    lag_bytes: null,
    lag_seconds: null,
    warnings: [],
    created_at: '2026-01-02T03:04:05.678Z',
    finished_at: null,
    ...changes,
  }
}

const started: Answer = [202, { data: imported() }]
const none: Answer = [404, { error: 'organization not found' }]
const done = imported({
  status: 'done',
  tables_done: 3,
  tables_total: 3,
  warnings: ['event triggers are not copied: a'],
})

test('an import shows its progress, and finally what was not copied', async () => {
  const running = (status: string, tables_done: number) => ok(imported({ status, tables_done, tables_total: 3 }))
  const seen = [running('dumping', 1), running('restoring', 2), ok(done)]
  await berth(['import', id, url, '--jobs', '2', '--live'], false, none, started, ...seen)
  expect(asked[1]).toBe(`POST /postgres/${id}/import`)
  expect(bodies).toEqual([{ url, jobs: 2, live: true }])
  expect(shown).toBe('dumping 1 of 3 tables (0 s)\nrestoring 2 of 3 tables (0 s)\n')
  expect(printed.join('\n')).toBe(`status    done
source    postgresql://owner@db.example.com:5432/shop
database  fly-db
tables    3 of 3
Warning: event triggers are not copied: a`)
})

test('an import that fails is an error with the reason, also with --json', async () => {
  const failed = imported({ status: 'failed', failure: 'the source cannot be reached' })
  await expect(berth(['import', id, url], false, none, started, ok(failed))).rejects.toThrow(
    'the import failed: the source cannot be reached',
  )
  expect(printed).toEqual([])
  await expect(berth(['import', id, url], true, none, started, ok(failed))).rejects.toThrow('the import failed')
  expect(JSON.parse(printed.join(''))).toEqual({ data: failed })
})

test('a live import says how to complete it, and its status shows the lag', async () => {
  const live = imported({
    status: 'live',
    live: true,
    lag_bytes: 2000,
    lag_seconds: 0.25,
    tables_done: 3,
    tables_total: 3,
  })
  await berth(['import', id, '--status'], false, none, ok(live))
  expect(asked.at(-1)).toBe(`GET /postgres/${id}/import`)
  expect(printed.join('\n')).toContain('lag       2 kB, 0.3 s')
  expect(printed.join('\n')).toContain(
    `Stop the writers of the source, then run: berth postgres import ${id} --cutover`,
  )
  await expect(berth(['import', id, '--status'], false, none, [200, { data: null }])).rejects.toThrow(
    'nothing was imported into this cluster yet',
  )
})

test('a cut-over waits, and fails if the import stays live', async () => {
  const cutover: Answer = [202, { data: imported({ status: 'cutover' }) }]
  await berth(
    ['import', id, '--cutover'],
    false,
    none,
    cutover,
    ok(imported({ status: 'cutover', progress: 'waiting' })),
    ok(done),
  )
  expect(asked[1]).toBe(`POST /postgres/${id}/import/cutover`)
  expect(shown).toBe('cutover: waiting (0 s)\n')
  const live = imported({ status: 'live', warnings: ['a cut-over was given up'] })
  await expect(berth(['import', id, '--cutover'], false, none, cutover, ok(live))).rejects.toThrow(
    'the import is still live: a cut-over was given up',
  )
})

test('a canceled import is no error', async () => {
  const canceled = imported({ status: 'canceled' })
  await berth(['import', id, '--cancel'], false, none, [202, { data: imported({ status: 'canceling' }) }], ok(canceled))
  expect(asked[1]).toBe(`DELETE /postgres/${id}/import`)
  expect(printed.join('\n')).toContain('status    canceled')
})

test.each([
  [['import', id], 'write the URL of the source, or one of --status, --cutover, --cancel'],
  [['import', id, url, '--cancel'], 'write either a URL or one of --status, --cutover, --cancel'],
  [['import', id, url, '--jobs', '9'], 'Write a number from 1 to 8.'],
  [['import', id, '--status', '--cancel'], 'cannot be used with'],
])('%j is refused', async (args, message) => {
  await expect(berth(args, false)).rejects.toThrow(message)
  expect(asked).toEqual([])
})
