import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { plainLine, rotate, showLine } from './log.ts'

describe('a line for a terminal', () => {
  const line = (fields: object) => JSON.stringify({ level: 40, time: '2026-11-19T12:34:56.789Z', pid: 1, ...fields })

  test('has the time, the level, the message, its fields and the cause', () => {
    const err = { type: 'Error', message: 'start postgres: no space', stack: 'at …' }
    expect(plainLine(line({ msg: 'step failed; retrying later', kind: 'cluster', id: 'c1', err }))).toEqual({
      time: '12:34:56Z ',
      text: 'warning: step failed; retrying later (kind cluster, id c1): start postgres: no space',
    })
    expect(plainLine(line({ level: 50, msg: 'request failed' })).text).toBe('error: request failed')
  })

  test('cannot move the cursor', () => {
    expect(plainLine(line({ msg: 'name \u001b[2J' })).text).toBe('warning: name \u{fffd}[2J')
  })

  test.each(['error: port 1 is in use', '{"level":', '"text"', 'null'])('stays as it is if it is %s', (text) => {
    expect(plainLine(`${text}\n`)).toEqual({ time: '', text })
  })

  test('is shown once a minute at most', () => {
    const shown: string[] = []
    let now = 0
    const show = showLine(
      (text) => shown.push(text),
      () => now,
    )
    for (const at of [0, 1_000, 59_000, 60_000, 61_000]) {
      now = at
      show(line({ msg: 'one' }))
      if (at === 1_000) show(line({ msg: 'two' }))
    }
    expect(shown.map((text) => text.slice(-3))).toEqual(['one', 'two', 'one'])
  })
})

describe('a log file', () => {
  let directory: string

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'berth-log-'))
  })

  afterEach(() => rmSync(directory, { recursive: true, force: true }))

  function openLog(path: string) {
    const file = pino.destination({ dest: path, sync: true }) as ReturnType<typeof pino.destination> & { fd: number }
    return { file, write: (text: string) => file.write(`${text}\n`) }
  }

  test('that is too large is kept once under another name', () => {
    const path = join(directory, 'log')
    const { file, write } = openLog(path)
    write('first')
    rotate(file, path, 100)
    write('second')
    expect(readFileSync(path, 'utf8')).toBe('first\nsecond\n')
    rotate(file, path, 5)
    write('third')
    expect(readFileSync(`${path}.1`, 'utf8')).toBe('first\nsecond\n')
    expect(readFileSync(path, 'utf8')).toBe('third\n')
    file.end()
  })

  test('that was moved or deleted is created again', () => {
    const path = join(directory, 'log')
    const { file, write } = openLog(path)
    write('first')
    renameSync(path, `${path}.moved`)
    rotate(file, path)
    write('second')
    expect(readFileSync(path, 'utf8')).toBe('second\n')
    rmSync(path)
    rotate(file, path)
    write('third')
    expect(readFileSync(path, 'utf8')).toBe('third\n')
    expect(existsSync(`${path}.1`)).toBe(false)
    file.end()
  })
})
