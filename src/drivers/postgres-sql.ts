import { invalid } from '../model/errors.ts'

// PostgreSQL cuts longer names without an error, and the thing would then have another name.
const maxNameBytes = 63

/** Whether there can be anything of that name. */
export function isIdentifier(name: string): boolean {
  return name !== '' && !name.includes('\0') && name.isWellFormed() && Buffer.byteLength(name) <= maxNameBytes
}

/** A name as PostgreSQL reads it whatever characters it has. */
export function quoteIdentifier(name: string): string {
  if (name === '') throw invalid('a name cannot be empty')
  if (name.includes('\0')) throw invalid('a name cannot hold a zero byte')
  // What goes out as UTF-8 would have another character in its place.
  if (!name.isWellFormed()) throw invalid('a name cannot hold half of a surrogate pair')
  if (Buffer.byteLength(name) > maxNameBytes) throw invalid(`a name cannot be longer than ${maxNameBytes} bytes`)
  return `"${name.replaceAll('"', '""')}"`
}

export function quoteLiteral(value: string): string {
  if (value.includes('\0')) throw invalid('a value cannot hold a zero byte')
  if (value.includes('\\')) return ` E'${value.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
  return `'${value.replaceAll("'", "''")}'`
}
