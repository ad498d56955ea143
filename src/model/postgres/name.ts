import { invalid } from '../errors.ts'

// PostgreSQL truncates longer names without an error.
const maxNameBytes = 63

/** Explains why PostgreSQL could not store the name unchanged; undefined for a usable one. */
export function findNameProblem(name: string): string | undefined {
  if (name === '') return 'a name cannot be empty'
  if (name.includes('\0')) return 'a name cannot contain a zero byte'
  // Encoding to UTF-8 would replace it by U+FFFD.
  if (!name.isWellFormed()) return 'a name cannot contain half of a surrogate pair'
  if (Buffer.byteLength(name) > maxNameBytes) return `a name cannot be longer than ${maxNameBytes} bytes`
  return undefined
}

/** Throws `invalid` for a name that PostgreSQL could not store unchanged. */
export function checkName(name: string): void {
  const problem = findNameProblem(name)
  if (problem) throw invalid(problem)
}
