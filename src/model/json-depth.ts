const quote = 34
const backslash = 92
const openBracket = 91
const closeBracket = 93
const openBrace = 123
const closeBrace = 125

/**
 * Whether the objects and arrays of a JSON text are nested deeper than `max`. It looks at each character once and does
 * not check the syntax. Functions that follow the nesting of a value by recursion would otherwise exhaust the stack.
 */
export function isDeeperThan(text: string, max: number): boolean {
  let depth = 0
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === quote) at = endOfString(text, at + 1)
    else if (code === openBracket || code === openBrace) {
      depth += 1
      if (depth > max) return true
    } else if (code === closeBracket || code === closeBrace) depth -= 1
  }
  return false
}

/** The index of the quote that ends the string, or the end of the text. */
function endOfString(text: string, start: number): number {
  for (let at = start; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === quote) return at
    if (code === backslash) at += 1
  }
  return text.length
}
