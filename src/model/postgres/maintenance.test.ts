import { expect, test } from 'vitest'
import { parseTime } from '../time.ts'
import { checkMaintenanceWindow, isInMaintenance } from './maintenance.ts'

const isIn = (window: string, time: string) => isInMaintenance(window, parseTime(time)!)

// 1 November 2026 is a Sunday.
test.each([
  ['sun 03:00', '2026-11-01T02:59:59Z', false],
  ['sun 03:00', '2026-11-01T03:00:00Z', true],
  ['sun 03:00', '2026-11-01T04:59:59.999999Z', true],
  ['sun 03:00', '2026-11-01T05:00:00Z', false],
  ['sun 03:00', '2026-11-02T03:30:00Z', false],
  ['sat 23:30', '2026-10-31T23:30:00Z', true],
  ['sat 23:30', '2026-11-01T01:29:00Z', true],
  ['sat 23:30', '2026-11-01T01:30:00Z', false],
  ['wed 12:15', '2026-11-04T12:20:00Z', true],
])('of the window %s, the time %s is in it: %s', (window, time, expected) => {
  expect(isIn(window, time)).toBe(expected)
})

test('a window is a day and a time', () => {
  for (const window of ['sun 03:00', 'sat 23:59', 'mon 00:00', null])
    expect(checkMaintenanceWindow(window)).toBe(window)
  for (const window of [
    '',
    'none',
    'sun',
    'Sun 03:00',
    'sun 24:00',
    'sun 3:00',
    'sun 03:60',
    ' sun 03:00',
    'sun 03:00\n',
  ])
    expect(() => checkMaintenanceWindow(window)).toThrow('such as "sun 03:00"')
})
