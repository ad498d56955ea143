import { formatDuration, goDurationMs } from '../duration.ts'
import { badRequest } from '../errors.ts'
import { readSignal } from '../signal.ts'
import type { StopConfig } from './container/program.ts'

const maxStopMs = 300_000

export function normalizeStop(field: string, stop: StopConfig): StopConfig {
  const normalized = { ...stop }
  if (stop.signal !== undefined) normalized.signal = checkSignal(`${field}.signal`, stop.signal)
  if (stop.timeout !== undefined) {
    normalized.timeout = normalizeDuration(`${field}.timeout`, stop.timeout)
    if (goDurationMs(stop.timeout)! > maxStopMs) throw badRequest(`${field}.timeout must be at most 5m`)
  }
  return normalized
}

export function checkSignal<T extends string | number>(field: string, signal: T): T {
  try {
    readSignal(signal)
  } catch (error) {
    throw badRequest(`${field}: ${(error as Error).message}`)
  }
  return signal
}

/** Text stays as it was sent; nanoseconds become text. */
export function normalizeDuration(field: string, duration: string | number): string {
  const ms = goDurationMs(duration)
  if (ms === undefined || ms < 0) throw badRequest(`${field} must be a duration such as 15s or 1m30s`)
  return typeof duration === 'string' ? duration : formatDuration(ms)
}
