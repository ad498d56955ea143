import { readFileSync } from 'node:fs'
import pino, { type Logger } from 'pino'
import type { EdgeSettings } from '../../edge/settings.ts'

export function readEdgeSettings(file: string): EdgeSettings {
  return JSON.parse(readFileSync(file, 'utf8'))
}

export function openEdgeLog(settings: EdgeSettings): Logger {
  return pino({ level: settings.logLevel, base: { pid: process.pid }, timestamp: pino.stdTimeFunctions.isoTime })
}
