import { beforeEach, describe, expect, test } from 'vitest'
import { pollUntil, startProgress } from './progress.ts'

let written: string
let millis: number

beforeEach(() => {
  written = ''
  millis = 5000
})

function start(isTTY: boolean, json = false, columns = 80) {
  const stream = { isTTY, columns, write: (text: string) => (written += text) }
  return startProgress({ json }, stream, () => millis)
}

describe('progress', () => {
  test('rewrites one line on a terminal and clears it at the end', () => {
    const progress = start(true)
    progress.show('creating')
    millis += 1999
    progress.show('creating')
    progress.end()
    expect(written).toBe('\r\u001b[2Kcreating (0 s)\r\u001b[2Kcreating (1 s)\r\u001b[2K')
  })

  test('keeps to the width of the terminal', () => {
    start(true, false, 9).show('initializing')
    expect(written).toBe('\r\u001b[2Kinitiali')
    start(true, false, 0).show('initializing')
    expect(written).toContain('initializing (0 s)')
  })

  test('writes a line for each status elsewhere', () => {
    const progress = start(false)
    for (const status of ['creating', 'creating', 'initializing', 'initializing']) {
      progress.show(status)
      millis += 1000
    }
    progress.end()
    expect(written).toBe('creating (0 s)\ninitializing (2 s)\n')
  })

  test('prints nothing with --json', () => {
    for (const isTTY of [true, false]) {
      const progress = start(isTTY, true)
      progress.show('creating')
      progress.end()
    }
    expect(written).toBe('')
  })
})

describe('pollUntil', () => {
  test('polls until nothing is pending', async () => {
    const states = ['creating', 'ready']
    const seen = await pollUntil(
      start(false),
      async () => states.shift()!,
      (state) => (state === 'ready' ? undefined : state),
    )
    expect({ seen, written }).toEqual({ seen: 'ready', written: 'creating (0 s)\n' })
  })

  test('clears its line when polling fails', async () => {
    const look = () => Promise.reject(new Error('no answer'))
    await expect(pollUntil(start(true), look, () => 'creating')).rejects.toThrow('no answer')
    expect(written).toBe('\r\u001b[2K')
  })
})
