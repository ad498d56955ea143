import { badRequest } from './errors.ts'

/** A command as it is typed, in words: quotes and backslashes as in a shell, and nothing else of one. */
export function splitWords(field: string, text: string): string[] {
  const words: string[] = []
  let word: string | undefined
  let quote = ''
  for (let at = 0; at < text.length; at++) {
    const letter = text[at]!
    if (quote) {
      if (letter === quote) quote = ''
      else if (letter === '\\' && quote === '"' && at + 1 < text.length) word += text[++at]!
      else word += letter
    } else if (letter === '"' || letter === "'") {
      quote = letter
      word ??= ''
    } else if (letter === '\\' && at + 1 < text.length) word = (word ?? '') + text[++at]!
    else if (/\s/.test(letter)) {
      if (word !== undefined) words.push(word)
      word = undefined
    } else word = (word ?? '') + letter
  }
  if (quote) throw badRequest(`${field} has a quote that does not end`)
  if (word !== undefined) words.push(word)
  return words
}
