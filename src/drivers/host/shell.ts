/** Quotes a text as one word of a POSIX shell. */
export function shellQuote(word: string): string {
  if (word.includes('\0')) throw new Error('a word of a command cannot hold a zero byte')
  return `'${word.replaceAll("'", `'\\''`)}'`
}
