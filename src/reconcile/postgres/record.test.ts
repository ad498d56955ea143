import { expect, test } from 'vitest'
import { type Repository, WalFileError } from '../../drivers/repository/driver.ts'
import type { Db } from '../../store/db.ts'
import { archiveRecorder } from './record.ts'

const at = 1_000n

function setup(sealed: number[] = [], damaged: WalFileError[] = []) {
  const calls: string[] = []
  let now = 10_000
  let problem: Error | undefined
  const repository = {
    sealSegments: async (id: string, _epoch: number, _timeline: number, before: bigint) => {
      calls.push(`seal ${id} ${before}`)
      return { count: sealed.shift() ?? 0, damaged: damaged.splice(0) }
    },
    recordEnd: async (id: string, _epoch: number, { lsn }: { lsn: bigint }) => {
      if (problem) throw problem
      calls.push(`end ${id} ${lsn}`)
    },
  } as unknown as Repository
  const db = {
    async transaction() {
      if (problem) throw problem
      calls.push('damage')
    },
  } as unknown as Db
  const recorder = archiveRecorder({ db, repository }, () => now)
  return {
    calls,
    fail: (error: Error | undefined) => {
      problem = error
    },
    async note(afterMs: number, ...positions: [id: string, lsn: bigint][]) {
      now += afterMs
      recorder.note(positions.map(([id, lsn]) => ({ id, epoch: 1, timeline: 1, lsn, at })))
      await recorder.settled()
    },
  }
}

test('segments are sealed before the end moves on, and an unchanged end is not written', async () => {
  const { calls, note } = setup()
  await note(0, ['a', 5n])
  await note(2000, ['a', 5n])
  expect(calls).toEqual(['seal a 5', 'end a 5'])
})

test('each cluster is recorded at most once a second, with its last position', async () => {
  const { calls, note } = setup()
  await note(0, ['a', 1n], ['b', 1n])
  await note(500, ['a', 2n], ['b', 1n])
  await note(400, ['a', 3n], ['b', 1n])
  expect(calls.filter((call) => call.startsWith('end'))).toEqual(['end a 1', 'end b 1'])
  await note(100, ['a', 4n], ['b', 1n])
  expect(calls.filter((call) => call.startsWith('end'))).toEqual(['end a 1', 'end b 1', 'end a 4'])
})

test('many segments are sealed over several turns, although the end stays', async () => {
  const { calls, note } = setup([8, 8, 0])
  for (let turn = 0; turn < 5; turn++) await note(1000, ['a', 9n])
  expect(calls.filter((call) => call.startsWith('seal'))).toHaveLength(3)
})

test('a failure is repeated and does not affect other clusters', async () => {
  const { calls, note, fail } = setup()
  fail(new Error('No space left on device'))
  await note(0, ['a', 1n])
  fail(undefined)
  await note(1000, ['a', 1n], ['b', 1n])
  expect(calls.filter((call) => call.startsWith('end'))).toEqual(['end a 1', 'end b 1'])
})

test('damage that is found while sealing is recorded, also if that fails at first', async () => {
  const file = '000000010000000000000003'
  const { calls, note, fail } = setup([1, 0], [new WalFileError('damaged', file, `WAL segment ${file} is damaged`)])
  fail(new Error('the state database is not available'))
  await note(0, ['a', 1n])
  fail(undefined)
  await note(1000, ['a', 1n])
  await note(1000, ['a', 2n])
  expect(calls.filter((call) => call === 'damage')).toHaveLength(1)
})
