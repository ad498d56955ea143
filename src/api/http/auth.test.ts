import { expect, it } from 'vitest'
import { hashToken } from '../../model/account/token.ts'
import { readTokenHash } from './auth.ts'

it('finds the same token behind every form of the header, also when it comes again', () => {
  const hash = hashToken('berth_a')
  for (const header of ['Bearer berth_a', 'bearer  berth_a', 'FlyV1 berth_a', 'Bearer FlyV1 berth_a', 'Bearer berth_a'])
    expect(readTokenHash(header)).toEqual(hash)
})

it('tells tokens apart, also among more than it remembers', () => {
  for (let round = 0; round < 2; round++)
    for (let n = 0; n < 1500; n++) expect(readTokenHash(`Bearer berth_${n}`)).toEqual(hashToken(`berth_${n}`))
})

it('refuses again what it has refused', () => {
  for (const header of [undefined, '', 'berth_a', 'Bearer a b'])
    for (let round = 0; round < 2; round++) expect(() => readTokenHash(header)).toThrow(/token/)
})

it('reads tokens that are too long to be remembered', () => {
  const token = `berth_${'a'.repeat(5000)}`
  for (let round = 0; round < 2; round++) expect(readTokenHash(`Bearer ${token}`)).toEqual(hashToken(token))
})
