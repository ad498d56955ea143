import { expect, test } from 'vitest'
import { ScreenModes } from './screen.ts'

function left(...output: string[]): string {
  const modes = new ScreenModes()
  for (const piece of output) modes.observe(Buffer.from(piece, 'latin1'))
  return modes.restore()
}

test('restores changed modes', () => {
  expect(left('\u001b[?1049h\u001b[?1000;1006h text \u001b[?25l')).toContain(
    '\u001b[?1049l\u001b[?1000l\u001b[?1006l\u001b[?25h',
  )
})

test('restores nothing that the program restored itself or did not change', () => {
  expect(left('\u001b[?1049h\u001b[?25l', 'text', '\u001b[?25h\u001b[?1049l')).toBe('')
  expect(left('plain \u001b[31mred\u001b[0m', '\u001b[?7h')).toBe('')
})

test('recognizes a sequence that is split over chunks', () => {
  const whole = 'x\u001b[?2004h'
  for (let cut = 1; cut < whole.length; cut++) {
    expect(left(whole.slice(0, cut), whole.slice(cut))).toContain('\u001b[?2004l')
  }
})

test('buffers no more than the longest sequence', () => {
  expect(left(`\u001b${'1'.repeat(100_000)}`, '[?25l')).toBe('')
})
