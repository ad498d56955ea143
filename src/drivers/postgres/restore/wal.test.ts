import { expect, test } from 'vitest'
import type { RestorePlan } from '../../../model/postgres/restore.ts'
import { parseLsn } from '../../../model/postgres/wal.ts'
import { findShortfall, manifestBytes, planBytes, readTimelineStart, renderPlan } from './wal.ts'

type Expected = Pick<RestorePlan, 'pieces' | 'timeline'>

const expected: Expected = {
  pieces: [
    { clusterId: 'a', epoch: 1, timeline: 1, end: '0/2800000' },
    { clusterId: 'b', epoch: 1, timeline: 2, end: '0/3002028' },
  ],
  timeline: 2,
}

function endedAt(lsn: string, reason = 'no recovery target specified') {
  return { timeline: 3, parent: 2, lsn: parseLsn(lsn), reason }
}

test('reads the start of a timeline from the end of its history', () => {
  const history = '1\t0/2800000\tbefore 2026-11-15 03:00:00+00\n\n2\t16/B374D848\tno recovery target specified\n'
  expect(readTimelineStart(3, history)).toEqual({
    timeline: 3,
    parent: 2,
    lsn: parseLsn('16/B374D848'),
    reason: 'no recovery target specified',
  })
  expect(() => readTimelineStart(3, '\n')).toThrow('empty')
})

test('requires a replay up to the end of the plan', () => {
  expect(findShortfall(endedAt('0/3002028'), expected)).toBeUndefined()
  // One commit is missing.
  expect(findShortfall(endedAt('0/3002000'), expected)).toBe(
    'the write-ahead log is damaged: replay ended at 0/3002000 instead of 0/3002028',
  )
})

test.each([
  ['0/3002018', '0/3002000', '0/3001FF8'],
  ['0/4000028', '0/4000000', '0/3FFFFF8'],
])('does not want the header of an empty page before %s', (cut, whole, short) => {
  const behindHeader = { ...expected, pieces: [{ clusterId: 'b', epoch: 1, timeline: 2, end: cut }] }
  expect(findShortfall(endedAt(whole), behindHeader)).toBeUndefined()
  expect(findShortfall(endedAt(short), behindHeader)).toContain('damaged')
})

test('detects another timeline', () => {
  expect(findShortfall({ ...endedAt('0/3002028'), parent: 1 }, expected)).toBe(
    'replay followed timeline 1 instead of 2',
  )
})

test('counts the bytes of the copy', () => {
  const bytes = manifestBytes('{ "Path": "a", "Size": 100, … }, { "Path": "b", "Size": 23 }')
  expect(bytes).toBe(123)
  const plan = renderPlan([{ path: '/r/with space/0001.partial', name: '0001', bytes: 77 }], bytes)
  expect(plan).toBe(`${123 + 16 * 1024 * 1024}\n77 0001 0 - /r/with space/0001.partial\n`)
  expect(planBytes(plan)).toBe(123 + 16 * 1024 * 1024)
})
