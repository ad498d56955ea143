import { Misuse } from './failure.ts'

/** Pairs of the kind `name=value`. */
export function pairsOf(option: string, pairs: string[]): Record<string, string> {
  return Object.fromEntries(
    pairs.map((pair) => {
      const end = pair.indexOf('=')
      if (end < 1) throw new Misuse(`${option} must be of the form NAME=value, not "${pair}"`)
      return [pair.slice(0, end), pair.slice(end + 1)]
    }),
  )
}
