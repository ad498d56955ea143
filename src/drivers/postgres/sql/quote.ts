import { invalid } from '../../../model/errors.ts'

// PostgreSQL cuts longer names without an error, and the thing would then have another name.
const maxNameBytes = 63

/** Why there can be nothing of that name. */
export function findNameProblem(name: string): string | undefined {
  if (name === '') return 'a name cannot be empty'
  if (name.includes('\0')) return 'a name cannot hold a zero byte'
  // What goes out as UTF-8 would have another character in its place.
  if (!name.isWellFormed()) return 'a name cannot hold half of a surrogate pair'
  if (Buffer.byteLength(name) > maxNameBytes) return `a name cannot be longer than ${maxNameBytes} bytes`
  return undefined
}

/** A name as PostgreSQL reads it whatever characters it has. */
export function quoteIdentifier(name: string): string {
  const problem = findNameProblem(name)
  if (problem) throw invalid(problem)
  return `"${name.replaceAll('"', '""')}"`
}

export function quoteLiteral(value: string): string {
  if (value.includes('\0')) throw invalid('a value cannot hold a zero byte')
  if (value.includes('\\')) return ` E'${value.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
  return `'${value.replaceAll("'", "''")}'`
}
