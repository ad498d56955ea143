import { readFileSync } from 'node:fs'
import pino, { type Logger } from 'pino'
import type { EdgeSettings } from '../edge/settings.ts'

export function readEdgeSettings(file: string): EdgeSettings {
  return JSON.parse(readFileSync(file, 'utf8'))
}

export function openEdgeLog(settings: EdgeSettings): Logger {
  return pino({ level: settings.logLevel, base: { pid: process.pid }, timestamp: pino.stdTimeFunctions.isoTime })
}

/** From the process that listens to a worker: here is a connection, or take no more and end within this time. */
export type EdgeOrder = { connection: number } | { drainMillis: number }

/** From a worker: it can take connections, it has this one, or these addresses lead to apps, as `address port`. */
export type EdgeReport = { ready: true } | { taken: number } | { listen: string[] }
