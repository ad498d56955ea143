import { invalid } from '../model/errors.ts'

// PostgreSQL cuts longer names without an error, and the thing would then have another name.
const maxNameBytes = 63

/** A name as PostgreSQL reads it whatever characters it has. */
export function quoteIdentifier(name: string): string {
  if (name === '') throw invalid('a name cannot be empty')
  if (name.includes('\0')) throw invalid('a name cannot hold a zero byte')
  if (Buffer.byteLength(name) > maxNameBytes) throw invalid(`a name cannot be longer than ${maxNameBytes} bytes`)
  return `"${name.replaceAll('"', '""')}"`
}

export function quoteLiteral(value: string): string {
  if (value.includes('\0')) throw invalid('a value cannot hold a zero byte')
  if (value.includes('\\')) return ` E'${value.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
  return `'${value.replaceAll("'", "''")}'`
}
