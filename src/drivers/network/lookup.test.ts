import { expect, test } from 'vitest'
import { showable } from './lookup.ts'

test('shows public records and those of the app itself', () => {
  const records = { a: ['1.1.1.1', '127.100.0.7'], aaaa: ['2606:4700::1'], cname: ['shop.berth.localhost'] }
  expect(showable(records, ['127.100.0.7', 'shop.berth.localhost'])).toEqual(records)
})

test('hides the addresses and canonical names of internal hosts', () => {
  const records = { a: ['10.0.0.5', '1.1.1.1'], aaaa: ['fdaa::3'], cname: ['db-1.corp.internal'] }
  expect(showable(records, ['127.100.0.7'])).toEqual({ a: ['1.1.1.1'], aaaa: [], cname: [] })
})
