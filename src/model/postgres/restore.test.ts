import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { parseTime, toRfc3339 } from '../time.ts'
import { labelTime, newLabel, restoredName } from './restore.ts'

describe('a point in time', () => {
  test.each([
    ['2026-11-15T10:02:03Z', '2026-11-15T10:02:03Z'],
    ['2026-11-15t10:02:03z', '2026-11-15T10:02:03Z'],
    ['2026-11-15 10:02:03+01:00', '2026-11-15T09:02:03Z'],
    ['2026-11-15T10:02:03.5-00:30', '2026-11-15T10:32:03.500000Z'],
    ['2026-11-15T10:02:03.123456789+05:45', '2026-11-15T04:17:03.123456Z'],
    ['2024-02-29T23:59:59.999999+23:59', '2024-02-29T00:00:59.999999Z'],
    ['2000-02-29T00:00:00-23:59', '2000-02-29T23:59:00Z'],
    ['2026-01-01T00:00:00.000000+00:01', '2025-12-31T23:59:00Z'],
  ])('%s is %s', (text, utc) => {
    expect(toRfc3339(parseTime(text)!)).toBe(utc)
  })

  test.each([
    '2026-11-15T10:02:03',
    '2026-11-15',
    '2026-11-15T10:02Z',
    '2026-11-15T10:02:60Z',
    '2026-11-15T24:00:00Z',
    '2026-02-30T00:00:00Z',
    '2025-02-29T00:00:00Z',
    '1900-02-29T00:00:00Z',
    '2026-13-01T00:00:00Z',
    '2026-00-01T00:00:00Z',
    '2026-01-00T00:00:00Z',
    '2026-11-15T10:02:03+24:00',
    '2026-11-15T10:02:03+01:60',
    '2026-11-15T10:02:03+0100',
    '2026-11-15T10:02:03+01',
    '2026-11-15T10:02:03.Z',
    '2026-11-15T10:02:03 Z',
    ' 2026-11-15T10:02:03Z',
    '2026-11-15T10:02:03Z\n',
    '26-11-15T10:02:03Z',
    'now',
    '5m-ago',
    '',
    '1794710122',
    '２０２６-11-15T10:02:03Z',
  ])('%j is rejected', (text) => {
    expect(parseTime(text)).toBeUndefined()
  })

  test('agrees with Date on every time that Date can represent', () => {
    fc.assert(
      fc.property(
        fc.date({ min: new Date('0001-01-01'), max: new Date('9999-12-31'), noInvalidDate: true }),
        (date) => {
          expect(parseTime(date.toISOString())).toBe(BigInt(date.getTime()) * 1000n)
        },
      ),
    )
  })

  test('is the same time with any offset', () => {
    const minutes = fc.integer({ min: -(23 * 60 + 59), max: 23 * 60 + 59 })
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 4_102_444_800 }), minutes, (seconds, offset) => {
        const local = new Date((seconds + offset * 60) * 1000)
        fc.pre(local.getTime() >= 0)
        const size = Math.abs(offset)
        const pad = (value: number) => String(value).padStart(2, '0')
        const suffix = `${offset < 0 ? '-' : '+'}${pad(Math.floor(size / 60))}:${pad(size % 60)}`
        expect(parseTime(local.toISOString().slice(0, 19) + suffix)).toBe(BigInt(seconds) * 1_000_000n)
      }),
    )
  })

  test('never throws', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(() => parseTime(text)).not.toThrow()
      }),
    )
  })
})

describe('a generated name', () => {
  const at = parseTime('2026-11-15T10:02:03.999Z')!

  test('contains the source and the time', () => {
    expect(restoredName('shop', at, 1)).toBe('shop-restore-20261115100203')
    expect(restoredName('shop', at, 2)).toBe('shop-restore-20261115100203-2')
  })

  test('is always a valid name', () => {
    fc.assert(
      fc.property(
        fc.stringMatching(/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/),
        fc.integer({ min: 1, max: 99 }),
        (source, n) => {
          expect(restoredName(source, at, n)).toMatch(/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/)
        },
      ),
    )
  })
})

test('a label contains the start time of its backup', () => {
  const at = parseTime('2026-06-01T12:00:00Z')!
  expect(newLabel(at)).toBe('20260601-120000F')
  expect(labelTime('20260601-120000F')).toBe(at)
  expect(labelTime('20260601-120000F_20260602-120000D')).toBeUndefined()
})
