import { expect, test } from 'vitest'
import { showable } from './lookup.ts'

const zone = { soa: 'ns1.example.com', acmeChallengeCname: 'a.acme.example.net', ownershipTxt: 'app-1' }
const hidden = { soa: null, acmeChallengeCname: null, ownershipTxt: null }

test('shows public records and those of the app itself', () => {
  const addresses = { a: ['1.1.1.1', '127.100.0.7'], aaaa: ['2606:4700::1'], cname: ['shop.berth.localhost'] }
  const records = { ...addresses, ...zone }
  expect(showable(records, ['127.100.0.7', 'shop.berth.localhost'])).toEqual(records)
})

test('hides the addresses, canonical names and zones of internal hosts', () => {
  const records = { a: ['10.0.0.5', '1.1.1.1'], aaaa: ['fdaa::3'], cname: ['db-1.corp.internal'], ...zone }
  expect(showable(records, ['127.100.0.7'])).toEqual({ a: ['1.1.1.1'], aaaa: [], cname: [], ...hidden })
})

test('hides the zone of a name without addresses, which may be internal', () => {
  expect(showable({ a: [], aaaa: [], cname: [], ...zone }, [])).toEqual({ a: [], aaaa: [], cname: [], ...hidden })
})
