import { expect, test } from 'vitest'
import { findExtensionPackage } from './extension.ts'

test('names the package of an extension', () => {
  expect(findExtensionPackage('vector', '17')).toBe('postgresql-17-pgvector')
  expect(findExtensionPackage('postgis_topology', '16')).toBe('postgresql-16-postgis-3')
  for (const name of ['citext', 'nonsense', 'constructor', '__proto__', ''])
    expect(findExtensionPackage(name, '17')).toBeUndefined()
})
