import { expect, test } from 'vitest'
import { hashToken } from '../../model/account/token.ts'
import { readCredentials } from './auth.ts'

const secret = Buffer.alloc(32, 5)
const readTokenHash = (header: string | undefined) => readCredentials(header, secret)[0]!.hash

test('reads the same token from every form of the header, cached or not', () => {
  const hash = hashToken('berth_a')
  for (const header of ['Bearer berth_a', 'bearer  berth_a', 'FlyV1 berth_a', 'Bearer FlyV1 berth_a', 'Bearer berth_a'])
    expect(readTokenHash(header)).toEqual(hash)
})

test('returns the right hash for each of more tokens than the cache holds', () => {
  for (let round = 0; round < 2; round++)
    for (let n = 0; n < 1500; n++) expect(readTokenHash(`Bearer berth_${n}`)).toEqual(hashToken(`berth_${n}`))
})

test('rejects an invalid header every time', () => {
  for (const header of [undefined, '', 'berth_a', 'Bearer a b'])
    for (let round = 0; round < 2; round++) expect(() => readTokenHash(header)).toThrow(/token/)
})

test('reads tokens that are too long for the cache', () => {
  const token = `berth_${'a'.repeat(5000)}`
  for (let round = 0; round < 2; round++) expect(readTokenHash(`Bearer ${token}`)).toEqual(hashToken(token))
})
