import { invalid } from '../../../model/errors.ts'
import { checkName } from '../../../model/postgres/name.ts'

export function quoteIdentifier(name: string): string {
  checkName(name)
  return `"${name.replaceAll('"', '""')}"`
}

export function quoteLiteral(value: string): string {
  if (value.includes('\0')) throw invalid('a value cannot contain a zero byte')
  if (value.includes('\\')) return ` E'${value.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
  return `'${value.replaceAll("'", "''")}'`
}
