import { expect, test } from 'vitest'
import { findFatal, findMark, findReadError, findReplayedLsn, recoveryLines, recoverySettings } from './log.ts'

function line(mark: string, text: string): string {
  return `2026-11-15 03:32:42.013821102  [3806] ${mark} ${text}`
}

test('sets no target, because the WAL ends at it', () => {
  expect(recoverySettings(3)).toContain(`recovery_target_timeline = '3'\n`)
  expect(recoverySettings(1)).not.toMatch(/recovery_target(_time|_lsn|_action)? =/)
})

test('separates the attempts of a server, and its recovery from its clients', () => {
  const first = findMark(recoverySettings(1))!
  const second = findMark(recoverySettings(1))!
  expect(first).not.toBe(second)
  const log = [
    line(first, 'startup: FATAL:  recovery ended before configured recovery target was reached'),
    line(second, 'client backend: FATAL:  the database system is not yet accepting connections'),
    line(second, 'startup: LOG:  redo in progress, elapsed time: 1.00 s, current LSN: 0/7A2F4B8'),
  ]
  expect(findFatal(recoveryLines(log, first))).toBe('recovery ended before configured recovery target was reached')
  expect(findFatal(recoveryLines(log, second))).toBeUndefined()
  expect(findReplayedLsn(recoveryLines(log, second))).toBe('0/7A2F4B8')
  expect(findReplayedLsn(recoveryLines(log, first))).toBeUndefined()
})

test('returns the reason of a failure with its detail', () => {
  const detail = 'max_connections = 10 is a lower setting than on the primary server, where its value was 68.'
  const failed = ['startup: FATAL:  recovery aborted', `startup: DETAIL:  ${detail}`, 'startup: HINT:  Change it.']
  const paused = ['startup: WARNING:  hot standby is not possible', `startup: DETAIL:  ${detail}`]
  const lines = (texts: string[]) =>
    recoveryLines(
      texts.map((text) => line('recovery-0', text)),
      'recovery-0',
    )
  expect(findFatal(lines(failed))).toBe(`recovery aborted: ${detail}`)
  expect(findFatal(lines(paused))).toBe(`hot standby is not possible: ${detail}`)
})

test('finds the read error that ended the replay', () => {
  const done = { level: 'LOG', text: 'redo done at 0/3000C68 system usage: …' }
  const complaint = 'incorrect resource manager data checksum in record at 0/3000C90'
  expect(findReadError([{ level: 'LOG', text: complaint }, done])).toBe(complaint)
  expect(findReadError([{ level: 'LOG', text: 'redo in progress, …' }, done])).toBeUndefined()
  expect(findReadError([done])).toBeUndefined()
  expect(findReadError([])).toBeUndefined()
})
