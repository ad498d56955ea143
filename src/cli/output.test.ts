import { describe, expect, test } from 'vitest'
import { block, confirm, formatCount, formatTime, printResult, sanitize, type Terminal, table } from './output.ts'

function fakeTerminal(changes: Partial<Terminal> = {}) {
  const printed: string[] = []
  const terminal: Terminal = {
    json: false,
    colors: false,
    print: (text) => printed.push(text),
    note: (text) => printed.push(text),
    ...changes,
  }
  return { terminal, printed }
}

describe('table', () => {
  test('aligns columns and leaves no blanks at the end of a line', () => {
    const rows = [
      ['web', 'deployed', 12],
      ['a-longer-name', 'pending', 0],
    ]
    expect(table(['NAME', 'STATUS', 'MACHINES'], rows, false).split('\n')).toEqual([
      'NAME           STATUS    MACHINES',
      'web            deployed  12',
      'a-longer-name  pending   0',
    ])
  })

  test('shows a missing value as a dash, but not zero and false', () => {
    expect(table(['A', 'B', 'C', 'D', 'E'], [[null, undefined, '', 0, false]], false)).toBe(
      'A  B  C  D  E\n-  -  -  0  no',
    )
  })

  test('dims the headers alone, and only with colours', () => {
    expect(table(['NAME'], [['web']], true)).toBe('\u001b[2mNAME\u001b[22m\nweb')
  })

  test('aligns by characters, not by UTF-16 units', () => {
    expect(table(['NAME', 'X'], [['héllo😀', 'y']], false)).toBe('NAME    X\nhéllo😀  y')
  })

  test('does not let a name control the terminal', () => {
    const text = table(['NAME'], [['\u001b[31mred\nline']], false)
    expect(text).toBe('NAME\n\u{fffd}[31mred\u{fffd}line')
  })
})

describe('block', () => {
  test('aligns the values', () => {
    const pairs: [string, string | number][] = [
      ['name', 'web'],
      ['machines', 2],
    ]
    expect(block(pairs, false)).toBe('name      web\nmachines  2')
  })
})

describe('printAnswer', () => {
  test('prints the answer with --json and text without', () => {
    const answer = { id: 'x', nested: { list: [1, null] } }
    const json = fakeTerminal({ json: true })
    printResult(json.terminal, answer, () => 'text')
    expect(JSON.parse(json.printed.join(''))).toEqual(answer)
    const people = fakeTerminal()
    printResult(people.terminal, answer, () => 'text')
    expect(people.printed).toEqual(['text'])
  })
})

describe('confirm', () => {
  test.each(['y', 'Y', 'yes', ' yes '])('accepts %j as yes', async (answer) => {
    const { terminal } = fakeTerminal({ ask: async () => answer })
    await expect(confirm(terminal, 'Sure?')).resolves.toBeUndefined()
  })

  test.each(['', 'n', 'yesterday', 'no'])('accepts %j as no', async (answer) => {
    const { terminal } = fakeTerminal({ ask: async () => answer })
    await expect(confirm(terminal, 'Sure?')).rejects.toThrow('nothing was changed')
  })

  test('throws when there is no terminal to ask', async () => {
    await expect(confirm(fakeTerminal().terminal, 'Sure?')).rejects.toThrow('use --yes')
  })
})

describe('texts', () => {
  test('cuts times to the second', () => {
    expect(formatTime('2025-01-02T03:04:05.678901Z')).toBe('2025-01-02T03:04:05Z')
    expect(formatTime('2025-01-02T03:04:05Z')).toBe('2025-01-02T03:04:05Z')
    expect(formatTime(null)).toBe('')
  })

  test('counts', () => {
    expect([0, 1, 2].map((count) => formatCount(count, 'machine'))).toEqual(['0 machines', '1 machine', '2 machines'])
  })

  test('keeps ordinary text as it is', () => {
    expect(sanitize('Ünïcode, "quotes" & 日本')).toBe('Ünïcode, "quotes" & 日本')
  })
})
