import { expect, test } from 'vitest'
import { isNewerVersion } from './upgrade.ts'

test.each([
  ['17.10', '17.5', true],
  ['17.5', '17.10', false],
  ['17.5', '17.5', false],
  ['17.5', '17', true],
  ['18beta1', '17.5', true],
  ['16.14', '17.1', false],
])('%s is newer than %s: %s', (version, than, expected) => {
  expect(isNewerVersion(version, than)).toBe(expected)
})
