const whitespace = /\s/

const tab = 9
const carriageReturn = 13
const blank = 32
const doubleQuote = 34
const singleQuote = 39
const backslash = 92
const firstBeyondAscii = 128

/** Inside double quotes a backslash escapes only these characters; before any other it is literal. */
const escapedInDouble = '"\\$`\n'

/**
 * Splits a command line into words by the quoting rules of a POSIX shell, without expanding anything. Returns undefined
 * when a quote is not closed. It compares character codes, because a regular expression takes ten times as long for the
 * megabyte that a tenant may send.
 */
export function splitWords(line: string): string[] | undefined {
  const words: string[] = []
  let word = ''
  let isOpen = false
  for (let at = 0; at < line.length; ) {
    const code = line.charCodeAt(at)
    if (isSpace(line, at, code)) {
      if (isOpen) words.push(word)
      word = ''
      isOpen = false
      at += 1
      continue
    }
    if (code === backslash && line[at + 1] === '\n') {
      at += 2 // a continued line
      continue
    }
    const end = endOfPart(line, at, code)
    if (end === undefined) return undefined
    word += textOfPart(line, at, end, code)
    isOpen = true
    at = end
  }
  return isOpen ? [...words, word] : words
}

function isSpace(line: string, at: number, code: number): boolean {
  if (code < firstBeyondAscii) return code === blank || (code >= tab && code <= carriageReturn)
  return whitespace.test(line[at]!)
}

/** The index after a quoted, escaped or plain part of a word; undefined when its quote is not closed. */
function endOfPart(line: string, start: number, code: number): number | undefined {
  if (code === backslash) return Math.min(start + 2, line.length)
  if (code === singleQuote) {
    const end = line.indexOf("'", start + 1)
    return end < 0 ? undefined : end + 1
  }
  return code === doubleQuote ? endOfDoubleQuoted(line, start + 1) : endOfPlain(line, start)
}

function endOfDoubleQuoted(line: string, start: number): number | undefined {
  for (let at = start; at < line.length; at++) {
    const code = line.charCodeAt(at)
    if (code === doubleQuote) return at + 1
    if (code === backslash) at += 1
  }
  return undefined
}

function endOfPlain(line: string, start: number): number {
  let at = start
  for (; at < line.length; at++) {
    const code = line.charCodeAt(at)
    if (code === backslash || code === singleQuote || code === doubleQuote || isSpace(line, at, code)) break
  }
  return at
}

function textOfPart(line: string, start: number, end: number, code: number): string {
  if (code === singleQuote) return line.slice(start + 1, end - 1)
  if (code === doubleQuote) return unescapeDoubleQuoted(line.slice(start + 1, end - 1))
  // A backslash at the end of the line stands for itself.
  return code === backslash && end === start + 2 ? line[start + 1]! : line.slice(start, end)
}

function unescapeDoubleQuoted(text: string): string {
  let at = text.indexOf('\\')
  if (at < 0) return text
  let result = ''
  let from = 0
  for (; at >= 0; at = text.indexOf('\\', at + 2)) {
    const next = text[at + 1]!
    result += text.slice(from, at)
    if (next !== '\n') result += escapedInDouble.includes(next) ? next : `\\${next}`
    from = at + 2
  }
  return result + text.slice(from)
}
