import { expect, test } from 'vitest'
import { quoteIdentifier, quoteLiteral } from './quote.ts'

test('quotes identifiers', () => {
  expect(quoteIdentifier('plain')).toBe('"plain"')
  expect(quoteIdentifier('a"b; drop')).toBe('"a""b; drop"')
})

test('rejects names that PostgreSQL would change', () => {
  expect(() => quoteIdentifier('a\0b')).toThrow('zero byte')
  expect(() => quoteIdentifier('')).toThrow('empty')
  expect(() => quoteIdentifier('ä'.repeat(32))).toThrow('63 bytes')
  expect(() => quoteIdentifier('a\ud83d')).toThrow('surrogate')
})

test('quotes literals', () => {
  expect(quoteLiteral(`it's`)).toBe(`'it''s'`)
  expect(quoteLiteral(`a\\'`)).toBe(` E'a\\\\'''`)
  expect(() => quoteLiteral('\0')).toThrow('zero byte')
})
