import { expect, test } from 'vitest'
import { holeInPieces, holeOfFile } from './damage.ts'

test('a segment is lost as a whole, also while it is written', () => {
  const expected = { timeline: 2, fromLsn: '1/5000000', toLsn: '1/6000000', kind: 'missing', reason: 'gone' }
  expect(holeOfFile('000000020000000100000005', 'missing', 'gone')).toEqual(expected)
  expect(holeOfFile('000000020000000100000005.partial', 'missing', 'gone')).toEqual(expected)
})

test('a timeline is lost with its history', () => {
  expect(holeOfFile('0000000A.history', 'damaged', 'short')).toEqual({
    timeline: 10,
    fromLsn: '0/0',
    toLsn: 'FFFFFFFF/FFFFFFFF',
    kind: 'damaged',
    reason: 'short',
  })
  expect(holeOfFile('backup_label', 'damaged', 'short')).toBeUndefined()
})

test('a hole belongs to the archive of its timeline, or else to the last one', () => {
  const pieces = [
    { clusterId: 'parent', epoch: 3, timeline: 1 },
    { clusterId: 'child', epoch: 1, timeline: 2 },
  ]
  const hole = { timeline: 1, fromLsn: '0/1000000', toLsn: '0/2000000', kind: 'damaged', reason: '' } as const
  expect(holeInPieces(pieces, hole)).toMatchObject({ clusterId: 'parent', epoch: 3 })
  expect(holeInPieces(pieces, { ...hole, timeline: 7 })).toMatchObject({ clusterId: 'child', epoch: 1 })
})
