import { expect, test } from 'vitest'
import { explainError } from './error.ts'

const refused = (code: string, message: string) => explainError(Object.assign(new Error(message), { code }), 'ask')

test('passes on the message of PostgreSQL without directories of the host', () => {
  const message =
    'could not load library "/home/of/berth/lib/plperl.so": libperl.so.5.26: cannot open shared object file'
  expect(refused('58P01', message)).toMatchObject({
    code: 'invalid',
    message: 'Could not load library "plperl.so": libperl.so.5.26: cannot open shared object file',
  })
  expect(refused('42P04', 'database "a/b" already exists').message).toBe('Database "a/b" already exists')
})

test('reports a race of two requests in words of our own', () => {
  const message = 'duplicate key value violates unique constraint "pg_database_datname_index"'
  expect(refused('23505', message)).toMatchObject({
    code: 'conflict',
    message: 'Another request is creating the same object',
  })
})

test('distinguishes temporary errors from internal ones', () => {
  expect(refused('57P03', 'the database system is starting up')).toMatchObject({ code: 'unavailable' })
  expect(refused('40P01', 'deadlock detected')).toMatchObject({ code: 'unavailable' })
  expect(refused('XX000', 'what is that')).toMatchObject({ message: 'ask' })
})
