import { expect, it } from 'vitest'
import { scramVerifier } from './postgres-scram.ts'

it('computes what PostgreSQL would keep', () => {
  // The password, the salt and the keys of the example in RFC 7677.
  const verifier = scramVerifier('pencil', Buffer.from('W22ZaJ0SNY7soEsUEjb6gQ==', 'base64'))
  expect(verifier).toBe(
    'SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=',
  )
})

it('salts', () => {
  expect(scramVerifier('pencil')).not.toBe(scramVerifier('pencil'))
})

it('refuses what clients would normalize differently', () => {
  expect(() => scramVerifier('pässword')).toThrow('ASCII')
  expect(() => scramVerifier('')).toThrow('ASCII')
})
