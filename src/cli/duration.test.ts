import { expect, test } from 'vitest'
import { parseDurationOption, parseSeconds } from './duration.ts'

test.each([
  ['90s', 90],
  ['30m', 1800],
  ['12h', 43_200],
  ['30d', 2_592_000],
  ['2w', 1_209_600],
  ['1y', 31_536_000],
  ['1.5h', 5400],
  ['1d12h', 129_600],
  ['1y2w3d4h5m6s', 33_019_506],
])('reads %s as %d seconds', (text, seconds) => {
  expect(parseDurationOption(text)).toBe(seconds)
})

test.each(['', '30', 'd', '0d', '-1d', '-1h', '1 d', '1D', '12h1d', '1.5s', 'forever', '99999999999d', '999999y'])(
  'rejects %j as the value of an option',
  (text) => {
    expect(() => parseDurationOption(text)).toThrow('Write a number and a unit')
  },
)

test('accepts zero and fractions of a second where no option needs whole seconds', () => {
  expect(parseSeconds('0s')).toBe(0)
  expect(parseSeconds('1500ms')).toBe(1.5)
})
