import { parse, TomlError } from 'smol-toml'
import { parseDuration } from '../../model/duration.ts'
import { UsageError } from '../errors.ts'

type Table = Record<string, unknown>

/** Throws with the line number when the text is not valid TOML. */
export function parseToml(text: string, file: string): Reader {
  try {
    return new Reader(parse(text) as Table, '')
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    throw new UsageError(`${file}: line ${error.line}: ${error.message.split('\n')[0]}`)
  }
}

/** Reads one table of the file and records which settings were read, so that unused ones can be reported. */
export class Reader {
  private readonly values: Table
  private readonly prefix: string
  private readonly read = new Set<string>()
  private readonly children: Reader[] = []

  constructor(values: Table, prefix: string) {
    this.values = values
    this.prefix = prefix
  }

  has(name: string): boolean {
    return this.values[name] !== undefined
  }

  raw(name: string): unknown {
    this.read.add(name)
    return this.values[name]
  }

  text(name: string): string | undefined {
    return this.readTyped(name, 'string', 'a string')
  }

  number(name: string): number | undefined {
    const value = this.raw(name)
    if (value === undefined) return undefined
    const number = Number(scalarText(value) || Number.NaN)
    if (!Number.isSafeInteger(number)) throw this.error(name, 'must be a whole number')
    return number
  }

  flag(name: string): boolean | undefined {
    return this.readTyped(name, 'boolean', 'true or false')
  }

  strings(name: string): string[] | undefined {
    const value = this.raw(name)
    if (value === undefined) return undefined
    if (!Array.isArray(value) || value.some((word) => typeof word !== 'string'))
      throw this.error(name, 'must be a list of strings')
    return value
  }

  /** A plain number counts as seconds. */
  duration(name: string): string | undefined {
    const value = this.raw(name)
    if (value === undefined) return undefined
    if (typeof value === 'number' || typeof value === 'bigint') return `${value}s`
    if (typeof value === 'string' && /^\d+$/.test(value)) return `${value}s`
    if (typeof value === 'string' && (parseDuration(value) ?? -1) >= 0) return value
    throw this.error(name, 'must be a duration such as "15s" or "1m30s"')
  }

  seconds(name: string): number | undefined {
    const duration = this.duration(name)
    return duration === undefined ? undefined : parseDuration(duration)! / 1000
  }

  /** The value as the text of an environment variable. */
  scalar(name: string): string {
    const value = this.raw(name)
    if (['string', 'number', 'bigint', 'boolean'].includes(typeof value)) return String(value)
    throw this.error(name, 'must be a string, a number, or true or false')
  }

  /** Returns an empty table when the setting is absent. */
  table(name: string): Reader {
    const value = this.raw(name) ?? {}
    if (!isTable(value)) throw this.error(name, 'must be a table')
    return this.child(value, name)
  }

  /** Accepts a list of tables or a single table. */
  tables(name: string): Reader[] {
    const value = this.raw(name)
    if (value === undefined) return []
    const list = Array.isArray(value) ? value : [value]
    if (!list.every(isTable)) throw this.error(name, 'must be a table or a list of tables')
    return list.map((one) => this.child(one, name))
  }

  tableOfTables(name: string): [string, Reader][] {
    const table = this.table(name)
    return Object.keys(table.entries()).map((key) => [key, table.table(key)])
  }

  entries(): Table {
    return this.values
  }

  unreadNames(): string[] {
    const own = Object.keys(this.values).filter((name) => !this.read.has(name))
    return [...new Set([...own.map((name) => this.path(name)), ...this.children.flatMap((one) => one.unreadNames())])]
  }

  error(name: string, what: string): UsageError {
    return new UsageError(`${this.path(name)} ${what}`)
  }

  private path(name: string): string {
    return this.prefix === '' ? name : `${this.prefix}.${name}`
  }

  private child(values: Table, name: string): Reader {
    const reader = new Reader(values, this.path(name))
    this.children.push(reader)
    return reader
  }

  private readTyped<T>(name: string, type: string, what: string): T | undefined {
    const value = this.raw(name)
    if (value === undefined) return undefined
    if (typeof value !== type) throw this.error(name, `must be ${what}`)
    return value as T
  }
}

/** The text of a number, which may also be written as a string. Returns an empty text for anything else. */
export function scalarText(value: unknown): string {
  return ['string', 'number', 'bigint'].includes(typeof value) ? String(value) : ''
}

function isTable(value: unknown): value is Table {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
}
