import { expect, test } from 'vitest'
import { isVerifierOf, scramVerifier } from './scram.ts'

test('computes the verifier that PostgreSQL stores', () => {
  // Password, salt and keys are those of the example in RFC 7677.
  const verifier = scramVerifier('pencil', Buffer.from('W22ZaJ0SNY7soEsUEjb6gQ==', 'base64'))
  expect(verifier).toBe(
    'SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=',
  )
})

test('uses a random salt', () => {
  expect(scramVerifier('pencil')).not.toBe(scramVerifier('pencil'))
})

test('checks a password against its verifier', () => {
  expect(isVerifierOf(scramVerifier('pencil'), 'pencil')).toBe(true)
  expect(isVerifierOf(scramVerifier('pencil'), 'Pencil')).toBe(false)
  expect(isVerifierOf('md5a8f3d1f0a3a2e5a0e6f0a3a2e5a0e6f0', 'pencil')).toBe(false)
})

test('rejects passwords that clients would normalize differently', () => {
  expect(() => scramVerifier('pässword')).toThrow('ASCII')
  expect(() => scramVerifier('')).toThrow('ASCII')
})
