const token = /(\s+)|'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.?)|([^\s'"\\]+)/gsy

/**
 * Splits a command line into words by the quoting rules of a POSIX shell, without expanding anything. Returns undefined
 * when a quote is not closed.
 */
export function splitWords(line: string): string[] | undefined {
  const words: string[] = []
  let word: string | undefined
  let end = 0
  for (const [text, space, single, double, escaped, plain] of line.matchAll(token)) {
    end += text.length
    if (space !== undefined) {
      if (word !== undefined) words.push(word)
      word = undefined
    } else if (escaped !== '\n') {
      const escapedText = escaped === '' ? '\\' : escaped // a backslash at the end of the line stands for itself
      word = (word ?? '') + (single ?? plain ?? escapedText ?? unescapeDoubleQuoted(double!))
    }
  }
  if (end < line.length) return undefined
  return word === undefined ? words : [...words, word]
}

/** Inside double quotes a backslash escapes only these characters; before any other it is literal. */
function unescapeDoubleQuoted(text: string): string {
  return text.replace(/\\(["\\$`\n])/g, (_, character: string) => (character === '\n' ? '' : character))
}
