import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type Candidate, type Clock, considerObservation, findStep, newClock, type Observation } from './clock.ts'

const second = 1_000_000n

type Look = { at: bigint; insertLsn: bigint; archivedLsn: bigint }

function observed({ at, insertLsn, archivedLsn }: Look, steady = at): Observation {
  return { at, steady: { before: steady, after: steady }, insertLsn, archivedLsn }
}

function run(looks: Look[]) {
  let clock: Clock = newClock
  const reached: (Pick<Candidate, 'at' | 'lsn'> | undefined)[] = []
  for (const look of looks) {
    const progress = considerObservation(clock, observed(look))
    clock = progress.clock
    reached.push(progress.reached && { at: progress.reached.at, lsn: progress.reached.lsn })
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

describe('a clock', () => {
  const nothing = { insertLsn: 0n, archivedLsn: 0n }
  const between = (passed: bigint, steady: bigint) =>
    findStep(
      observed({ at: 100n * second, ...nothing }, 0n),
      observed({ at: 100n * second + passed, ...nothing }, steady),
    )

  test.each([
    [second / 2n, second / 2n],
    [second / 4n, second / 2n],
    [second, second / 2n],
    [3n * second, 4n * second],
    [4n * second, 3n * second],
  ])('that moves by %i within %i was not changed', (passed, steady) => {
    expect(between(passed, steady)).toBeUndefined()
  })

  test.each([
    [600n * second, second / 2n],
    [-600n * second, second / 2n],
    [-second / 4n, second / 2n],
    [2n * second, second / 2n],
    [second, 4n * second],
  ])('that moves by %i within %i was changed', (passed, steady) => {
    expect(between(passed, steady)).toBe(passed - steady)
  })

  test('is not called changed because an answer took long', () => {
    const last = observed({ at: 0n, ...nothing })
    const late = { at: second / 2n, steady: { before: second / 2n, after: 9n * second }, ...nothing }
    expect(findStep(last, late)).toBeUndefined()
    const next = { at: 9n * second, steady: { before: 9n * second, after: 9n * second }, ...nothing }
    expect(findStep(late, next)).toBeUndefined()
  })

  test('does not settle on its own time', () => {
    const { clock } = considerObservation(newClock, observed({ at: 0n, insertLsn: 100n, archivedLsn: 100n }, 0n))
    const jumped = observed({ at: 600n * second, insertLsn: 100n, archivedLsn: 100n }, second / 2n)
    expect(considerObservation(clock, jumped).reached).toBeUndefined()
  })
})
