import { spawnSync } from 'node:child_process'
import { expect, test } from 'vitest'
import { driverProgram } from '../../host/program.ts'
import { parseProgress, passwordLine } from './job.ts'

const at = '2026-11-18 11:22:31.143947605  '

test('progress is what was finished, or started before the last one', () => {
  expect(parseProgress([])).toEqual({ tablesDone: 0, tableName: null, bytesDone: 0 })
  expect(parseProgress([`${at}started 1 public.a`])).toMatchObject({ tablesDone: 0, tableName: 'public.a' })
  expect(parseProgress([`${at}started 3 public.a b`, `${at}noise`])).toMatchObject({
    tablesDone: 2,
    tableName: 'public.a b',
  })
  expect(parseProgress([`${at}started 5 a`, `${at}finished 2`, `${at}size 77`])).toEqual({
    tablesDone: 2,
    tableName: 'a',
    bytesDone: 77,
  })
})

test('a line of a password file has its separators escaped', () => {
  const login = { user: 'a:b', password: 'c\\d:e', database: 'f' }
  expect(passwordLine('/run/x', 5432, login)).toBe('/run/x:5432:f:a\\:b:c\\\\d\\:e\n')
})

function report(mode: 'dump' | 'restore', text: string) {
  const { stdout, status } = spawnSync('perl', [driverProgram('postgres/import/report.pl'), mode], { input: text })
  return { lines: stdout.toString().trimEnd().split('\n'), status }
}

test('the output of pg_dump is reduced to progress, warnings and errors', () => {
  const output = [
    'pg_dump: last built-in OID is 16383',
    'pg_dump: dumping contents of table "public.a"',
    'pg_dump: warning: there are circular foreign-key constraints on this table:',
    'pg_dump: finished item 3456 TABLE DATA a',
    'pg_dump: finished item 3457 BLOBS BLOBS',
  ]
  expect(report('dump', `${output.join('\n')}\n`)).toEqual({
    lines: ['started 1 public.a', output[2], 'finished 1'],
    status: 0,
  })
  expect(report('dump', 'pg_dump: error: query failed: ERROR:  no\npg_dump: detail: Query was: x\n')).toEqual({
    lines: ['pg_dump: error: query failed: ERROR:  no', 'pg_dump: detail: Query was: x'],
    status: 1,
  })
})

test('of pg_restore only a parameter that an older server does not know is no error', () => {
  const unknown =
    'pg_restore: error: could not execute query: ERROR:  unrecognized configuration parameter "transaction_timeout"'
  const ended = 'pg_restore: warning: errors ignored on restore: 1'
  expect(report('restore', `${unknown}\nCommand was: SET transaction_timeout = 0;\n${ended}\n`).status).toBe(0)
  expect(report('restore', `${ended}\n`).status).toBe(1)
  const failed = [
    'pg_restore: from TOC entry 7; 0 1 VIEW a b',
    'pg_restore: error: could not execute query: ERROR:  no',
  ]
  expect(report('restore', `${failed.join('\n')}\nCommand was: create view\n`)).toEqual({
    lines: ['VIEW a b: pg_restore: error: could not execute query: ERROR:  no', 'Command was: create view'],
    status: 1,
  })
})
