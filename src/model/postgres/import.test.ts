import { expect, test } from 'vitest'
import { cleanupStatements, formatSource, parseImportUrl } from './import.ts'

test('a URL is split into its parts, with the defaults of libpq', () => {
  expect(parseImportUrl('postgres://a%40b:p%3A%2Fw@db.example.com/my%20db')).toEqual({
    host: 'db.example.com',
    port: 5432,
    user: 'a@b',
    password: 'p:/w',
    database: 'my db',
    sslMode: 'prefer',
  })
  expect(parseImportUrl('postgresql://a@[2001:db8::1]:6000/b?sslmode=verify-full')).toEqual({
    host: '2001:db8::1',
    port: 6000,
    user: 'a',
    password: '',
    database: 'b',
    sslMode: 'verify-full',
  })
  expect(parseImportUrl('postgresql://a@b/c?sslmode=allow').sslMode).toBe('prefer')
})

test.each([
  'postgresql:///shop',
  'postgresql://a:b@/shop',
  'postgresql://a:b@host:0/shop',
  'postgresql://a:b@host:99999/shop',
  'postgresql://a:b@%2Fvar%2Frun/shop',
  'postgresql://a:b@host/%00',
  'postgresql://a:b@host/%ff',
  `postgresql://a:b@host/${'x'.repeat(64)}`,
  `postgresql://a:b@host/${'x'.repeat(5000)}`,
  'mysql://a:b@host/shop',
  'not a URL',
  '',
])('%s is refused without repeating the password', (url) => {
  expect(() => parseImportUrl(url)).toThrow()
  const secret = url.replace(':b@', ':very-secret@')
  expect(() => parseImportUrl(secret)).toThrow(
    expect.objectContaining({ message: expect.not.stringContaining('very-secret') }),
  )
})

test('a source is shown without its password', () => {
  const source = parseImportUrl('postgresql://a%40b:secret@[2001:db8::1]/my%20db')
  expect(formatSource(source)).toBe('postgresql://a%40b@[2001:db8::1]:5432/my%20db')
})

test('the statements for the owner of a source name the slot and the publication', () => {
  expect(cleanupStatements('abc')).toBe(
    `select pg_drop_replication_slot('berth_import_abc'); drop publication if exists berth_import_abc`,
  )
})
