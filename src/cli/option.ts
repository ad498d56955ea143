// Values of command-line options and arguments that several areas use.
import { InvalidArgumentError } from 'commander'
import { UsageError } from './errors.ts'

/** Accepts any whole number. The platform decides which ones are allowed. */
export function parseWholeNumber(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('Write a whole number.')
  return Number(text)
}

/** Collects the values of an option that may be given several times. */
export function collect(value: string, before: string[] = []): string[] {
  return [...before, value]
}

/** Reads `NAME=value` pairs. `option` is the name to use in the error message. */
export function parsePairs(option: string, pairs: string[]): Record<string, string> {
  return Object.fromEntries(
    pairs.map((pair) => {
      const end = pair.indexOf('=')
      if (end < 1) throw new UsageError(`${option} must be of the form NAME=value, not "${pair}"`)
      return [pair.slice(0, end), pair.slice(end + 1)]
    }),
  )
}
