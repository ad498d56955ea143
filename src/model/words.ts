import { badRequest } from './errors.ts'

/** The characters that a backslash escapes between double quotes. */
const escapable = { any: /[\s\S]/, posix: /["\\$`]/ }

/**
 * Splits a command line into words by whitespace, quotes and backslashes as a shell does, without expansions.
 * Between double quotes a backslash escapes any character; with `posix`, only those that a POSIX shell escapes there.
 */
export function splitWords(field: string, text: string, escapes: keyof typeof escapable = 'any'): string[] {
  const words: string[] = []
  let word: string | undefined
  let quote = ''
  for (let at = 0; at < text.length; at++) {
    const char = text[at]!
    const next = text[at + 1]
    if (quote) {
      if (char === quote) quote = ''
      else if (char === '\\' && quote === '"' && next && escapable[escapes].test(next)) word += text[++at]!
      else word += char
    } else if (char === '"' || char === "'") {
      quote = char
      word ??= ''
    } else if (char === '\\' && next) {
      word = (word ?? '') + text[++at]!
    } else if (/\s/.test(char)) {
      if (word !== undefined) words.push(word)
      word = undefined
    } else word = (word ?? '') + char
  }
  if (quote) throw badRequest(`${field} has an unclosed ${quote}`)
  if (word !== undefined) words.push(word)
  return words
}
