import { expect, test } from 'vitest'
import { tokenState } from './token.ts'

const now = Date.parse('2025-06-01T00:00:00Z')

test.each([
  ['active', null, null],
  ['active', '2025-06-01T00:00:01Z', null],
  ['expired', '2025-06-01T00:00:00Z', null],
  ['revoked', null, '2025-05-01T00:00:00Z'],
  ['revoked', '2025-05-02T00:00:00Z', '2025-05-01T00:00:00Z'],
])('calls a token %s that expires at %s and was revoked at %s', (state, expiresAt, revokedAt) => {
  expect(tokenState({ expires_at: expiresAt, revoked_at: revokedAt }, now)).toBe(state)
})
