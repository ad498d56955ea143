// Glob patterns without regular expressions: patterns are untrusted, and matching must take at most the product of the
// lengths of pattern and name.

import { badRequest } from '../errors.ts'

/** No longer than a path can be. */
const maxPatternLength = 4096

/**
 * Compiles a pattern: `*` matches any characters, `?` one, `[a-z]` one of a set, `[!a-z]` one outside it. A pattern with
 * a slash matches the path below the listed directory, where `**` matches any number of directories; a pattern without
 * one matches only the file name.
 */
export function filePattern(pattern: string): (relativePath: string) => boolean {
  if (pattern.length > maxPatternLength) throw badRequest(`pattern has more than ${maxPatternLength} characters`)
  const parts = pattern.replace(/^\/+/, '').split('/')
  const matchers = parts.map((part) => (part === '**' ? 'any' : one(part)))
  if (parts.length === 1 && parts[0] !== '**') {
    const matches = matchers[0] as Matcher
    return (path) => matches(path.slice(path.lastIndexOf('/') + 1))
  }
  return (path) => matchSequence(matchers, path.split('/'))
}

type Matcher = (text: string) => boolean
type CharacterTest = (character: string) => boolean

function one(pattern: string): Matcher {
  const tests = characterTests([...pattern])
  return (text) => matchSequence(tests, [...text])
}

/** Backtracks only to the last `any`: whatever an earlier one could match, the later one can match as well. */
function matchSequence(tests: (((item: string) => boolean) | 'any')[], items: string[]): boolean {
  let [test, item] = [0, 0]
  let back: { test: number; item: number } | undefined
  while (item < items.length) {
    const current = tests[test]
    if (current === 'any') {
      back = { test, item }
      test += 1
    } else if (current?.(items[item]!)) {
      test += 1
      item += 1
    } else if (back) {
      back.item += 1
      item = back.item
      test = back.test + 1
    } else {
      return false
    }
  }
  return tests.slice(test).every((rest) => rest === 'any')
}

function characterTests(pattern: string[]): (CharacterTest | 'any')[] {
  const tests: (CharacterTest | 'any')[] = []
  const lastBracket = pattern.lastIndexOf(']')
  for (let at = 0; at < pattern.length; at++) {
    const character = pattern[at]!
    // Without the comparison, each of many opening brackets would search the rest of the pattern.
    const end = character === '[' && at + 2 <= lastBracket ? pattern.indexOf(']', at + 2) : -1
    if (character === '*') {
      if (tests.at(-1) !== 'any') tests.push('any')
    } else if (character === '?') {
      tests.push(() => true)
    } else if (end !== -1) {
      tests.push(oneOf(pattern.slice(at + 1, end)))
      at = end
    } else {
      const literal = character === '\\' && at + 1 < pattern.length ? pattern[++at]! : character
      tests.push((other) => other === literal)
    }
  }
  return tests
}

function oneOf(set: string[]): CharacterTest {
  const inverted = set[0] === '!' || set[0] === '^'
  const members = inverted ? set.slice(1) : set
  const ranges: [string, string][] = []
  for (let at = 0; at < members.length; at++) {
    const isRange = members[at + 1] === '-' && at + 2 < members.length
    ranges.push([members[at]!, members[isRange ? at + 2 : at]!])
    if (isRange) at += 2
  }
  return (character) => ranges.some(([from, to]) => from <= character && character <= to) !== inverted
}
