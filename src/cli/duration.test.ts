import { expect, it } from 'vitest'
import { parseDuration } from './duration.ts'

it.each([
  ['90s', 90],
  ['30m', 1800],
  ['12h', 43_200],
  ['30d', 2_592_000],
  ['2w', 1_209_600],
  ['1y', 31_536_000],
])('reads %s', (text, seconds) => {
  expect(parseDuration(text)).toBe(seconds)
})

it.each(['', '30', 'd', '0d', '-1d', '1.5h', '1 d', '1d12h', '1D', 'forever', '99999999999d'])('refuses %j', (text) => {
  expect(() => parseDuration(text)).toThrow('Write a number and a unit')
})
