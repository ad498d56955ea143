// The weekly window in which a cluster is upgraded to the newest installed minor version by itself.
import { invalid } from '../errors.ts'
import type { Micros } from '../time.ts'

const days = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat']

export const maintenancePattern = `^(${days.join('|')}) ([01][0-9]|2[0-3]):[0-5][0-9]$`
const pattern = new RegExp(maintenancePattern)

export const maintenanceHours = 2

/** Throws `invalid` unless it is a day and a time. */
export function checkMaintenanceWindow(window: string | null): string | null {
  if (window === null || pattern.test(window)) return window
  throw invalid('maintenance_window must be a day and a time in UTC such as "sun 03:00", or null for none')
}

const minuteMicros = 60_000_000n
const weekMinutes = 7 * 24 * 60
/** 1 January 1970 was a Thursday. */
const epochMinutes = 4 * 24 * 60

export function isInMaintenance(window: string, now: Micros): boolean {
  const [day = '', time = ''] = window.split(' ')
  const [hour, minute] = time.split(':').map(Number)
  const start = (days.indexOf(day) * 24 + hour!) * 60 + minute!
  const passed = (Number(now / minuteMicros) + epochMinutes - start) % weekMinutes
  return passed < maintenanceHours * 60
}
