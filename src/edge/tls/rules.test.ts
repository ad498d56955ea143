import { expect, test } from 'vitest'
import { parseTlsRules, webTlsRules } from './rules.ts'

test('versions and protocols that are not supported are ignored', () => {
  expect(parseTlsRules({}, true)).toEqual(webTlsRules)
  expect(parseTlsRules({ alpn: ['', 'x'.repeat(256)], versions: ['TLSv1.1'] }, true)).toEqual(webTlsRules)
  expect(parseTlsRules(undefined, false)).toEqual({ ...webTlsRules, alpn: [] })
  expect(parseTlsRules({ alpn: ['mine'], versions: ['TLSv1.3'] }, true)).toEqual({
    alpn: ['mine'],
    minVersion: 'TLSv1.3',
    maxVersion: 'TLSv1.3',
  })
})
