// The parts of the grammar of HTTP that JavaScript has other ideas about. `trim` and `\s` also match form feeds, vertical
// tabs and no-break spaces, which other parsers take for a part of the value.

const space = 0x20
const tab = 0x09

/** Removes spaces and tabs from both ends. */
export function trimSpace(text: string): string {
  let start = 0
  let end = text.length
  while (start < end && isSpace(text.charCodeAt(start))) start += 1
  while (end > start && isSpace(text.charCodeAt(end - 1))) end -= 1
  return start === 0 && end === text.length ? text : text.slice(start, end)
}

function isSpace(code: number): boolean {
  return code === space || code === tab
}

/** The elements of a list that is separated by commas. Empty ones are left out, as they have no meaning. */
export function splitList(text: string): string[] {
  return text
    .split(',')
    .map(trimSpace)
    .filter((element) => element !== '')
}
