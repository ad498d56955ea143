import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type Candidate, considerObservation } from './sampler.ts'

const second = 1_000_000n

function run(looks: { at: bigint; insertLsn: bigint; archivedLsn: bigint }[]) {
  let candidates: Candidate[] = []
  const reached: (Candidate | undefined)[] = []
  for (const look of looks) {
    const progress = considerObservation(candidates, look)
    candidates = progress.candidates
    reached.push(progress.reached)
  }
  return reached
}

describe('the end of a recovery window', () => {
  test('is a time whose position was read a second later and is archived', () => {
    const reached = run([
      { at: 0n, insertLsn: 100n, archivedLsn: 100n },
      { at: second / 2n, insertLsn: 200n, archivedLsn: 200n },
      { at: second, insertLsn: 300n, archivedLsn: 300n },
    ])
    expect(reached).toEqual([undefined, undefined, { at: 0n, lsn: 300n }])
  })

  test('waits for the archive', () => {
    const reached = run([
      { at: 0n, insertLsn: 100n, archivedLsn: 0n },
      { at: second, insertLsn: 300n, archivedLsn: 299n },
      { at: 2n * second, insertLsn: 400n, archivedLsn: 300n },
    ])
    expect(reached).toEqual([undefined, undefined, { at: 0n, lsn: 300n }])
  })

  test('moves with an idle source', () => {
    const looks = [0n, 1n, 2n, 3n].map((n) => ({ at: n * second, insertLsn: 500n, archivedLsn: 500n }))
    expect(run(looks).at(-1)).toEqual({ at: 2n * second, lsn: 500n })
  })

  test.each([8192n + 24n, 16_777_216n + 40n])(
    'does not wait for a page header that is not written: %i',
    (insertLsn) => {
      const archivedLsn = (insertLsn / 8192n) * 8192n
      const looks = [0n, 1n].map((n) => ({ at: n * second, insertLsn, archivedLsn }))
      expect(run(looks).at(-1)).toEqual({ at: 0n, lsn: archivedLsn })
    },
  )

  test('never claims a commit that is not archived, whatever happens', () => {
    // Commits get their timestamp less than a second before their record is written.
    const commit = fc.record({
      stamped: fc.integer({ min: 0, max: 20_000_000 }),
      delay: fc.integer({ min: 0, max: 900_000 }),
    })
    const tick = fc.record({ at: fc.integer({ min: 0, max: 25_000_000 }), lag: fc.integer({ min: 0, max: 5_000 }) })
    fc.assert(
      fc.property(
        fc.array(commit, { maxLength: 50 }),
        fc.array(tick, { minLength: 2, maxLength: 60 }),
        (commits, ticks) => {
          const written = commits
            .map(({ stamped, delay }) => ({ stamped, at: stamped + delay }))
            .sort((a, b) => a.at - b.at)
          const lsnAt = (time: number) => BigInt(written.filter((record) => record.at <= time).length * 1000)
          let archived = 0n
          const looks = ticks
            .sort((a, b) => a.at - b.at)
            .map(({ at, lag }) => {
              const insertLsn = lsnAt(at)
              const behind = insertLsn - BigInt(lag)
              if (behind > archived) archived = behind
              return { at: BigInt(at), insertLsn, archivedLsn: archived }
            })
          const edges = run(looks)
          for (const [i, edge] of edges.entries()) {
            if (!edge) continue
            expect(edge.lsn!).toBeLessThanOrEqual(looks[i]!.archivedLsn)
            const covered = written.filter((record) => BigInt(record.stamped) <= edge.at)
            for (const record of covered) expect(lsnAt(record.at)).toBeLessThanOrEqual(edge.lsn!)
          }
        },
      ),
    )
  })
})
