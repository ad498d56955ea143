import { readFileSync } from 'node:fs'
import pino, { type Logger } from 'pino'
import type { EdgeSettings } from '../../edge/settings.ts'

export function readEdgeSettings(file: string): EdgeSettings {
  return JSON.parse(readFileSync(file, 'utf8'))
}

export function openEdgeLog(settings: EdgeSettings): Logger {
  return pino({ level: settings.logLevel, base: { pid: process.pid }, timestamp: pino.stdTimeFunctions.isoTime })
}

/**
 * From the process that listens to a worker: here is a connection; take no more and end within this time; whether there
 * was a place that it asked for; there is one again; here is the socket that it asked for, or there is none.
 */
export type EdgeOrder =
  | { connection: number }
  | { drainMillis: number }
  | { asked: number; granted: boolean }
  | { freed: string }
  | { bound: string }

/**
 * From a worker: it can take connections; it has this one; these addresses lead to apps, as `address port`; it asks for a
 * place at a target of few; it gives one back; it asks for the datagrams that arrive at `address port`.
 */
export type EdgeReport =
  | { ready: true }
  | { taken: number }
  | { listen: string[] }
  | { ask: number; key: string; limit: number }
  | { release: string }
  | { bind: string }
