// The clock of a server is set forward and back while it writes. A time is refused, or restored exactly.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy, readyCluster } from '../../support/client.ts'
import { FakeClock } from '../../support/postgres/fake-clock.ts'
import type { Decided } from '../../support/postgres/oracle.ts'
import {
  backUp,
  describeDifference,
  formatTime,
  inTurn,
  majorsOf,
  parseMicros,
  pause,
  random,
  restore,
  seconds,
  selectRows,
  show,
  Tally,
  targetCount,
  unlimited,
  type Written,
  writeDuring,
} from '../../support/postgres/oracle-platform.ts'
import { until } from '../../support/until.ts'

const majors = majorsOf('17')
const clocks = new Map(majors.map((major) => [major, new FakeClock(major)]))
const berth = new Berth({
  ...unlimited,
  ...Object.fromEntries([...clocks].map(([major, { bin }]) => [`BERTH_PG${major}_BIN`, bin])),
})
beforeAll(() => berth.up())
afterAll(async () => {
  await destroy(berth)
  for (const clock of clocks.values()) await clock.remove()
})

/** A time during which the clock ran evenly, apart from bumps that nobody may have noticed. */
interface Phase {
  /** Everything written before it lies before this position. */
  lsn: bigint
  from: bigint
  to: bigint
}

const lsnQuery = `select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::text as lsn`

/** The clock stays behind that of the platform, in seconds, because a window never reaches into the future. */
const firstOffset = -8

async function writeWithSteps(id: string, clock: FakeClock): Promise<Written & { phases: Phase[] }> {
  const phases: Phase[] = []
  let offset = firstOffset
  const now = () => BigInt(Math.round((Date.now() + offset * 1000) * 1000))
  const written = await writeDuring(berth, id, async (superuser) => {
    const enter = async (next: number) => {
      const { rows } = await superuser.query(lsnQuery)
      if (phases.length > 0) phases.at(-1)!.to = now()
      clock.set(next)
      offset = next
      phases.push({ lsn: BigInt(rows[0].lsn), from: now(), to: 0n })
    }
    const bump = async (by: number) => {
      clock.set(offset + by)
      await pause(150)
      clock.set(offset)
      await pause(seconds * 250)
    }
    await enter(firstOffset)
    await pause(seconds * 1000)
    for (const by of [0.3, -0.3, 600]) await bump(by)
    await enter(firstOffset + 7)
    await pause(seconds * 1000)
    await backUp(berth, id)
    // Four seconds are shown a second time.
    await enter(firstOffset + 3)
    await pause(5000 + seconds * 1000)
    for (const by of [-3, 2]) await bump(by)
    await pause(seconds * 500)
    phases.at(-1)!.to = now()
  })
  return { ...written, phases }
}

/** The phase that a commit was stamped in. A commit may be written a moment after the clock was set. */
function phaseOf({ lsn, micros }: Decided, phases: Phase[]): Phase {
  const distance = ({ from, to }: Phase) => (micros < from ? from - micros : micros > to ? micros - to : 0n)
  const begun = phases.filter((phase) => phase.lsn <= lsn)
  return begun.reduce((best, phase) => (distance(phase) <= distance(best) ? phase : best), begun[0] ?? phases[0]!)
}

/** Everything up to the last commit of the phase that was stamped at or before the time. */
function truthIn(phase: Phase, decisions: Decided[], phases: Phase[], time: bigint): Set<bigint> {
  const last = decisions.findLastIndex((each) => {
    const its = phaseOf(each, phases)
    return each.committed && (its === phase ? each.micros <= time : its.lsn < phase.lsn)
  })
  const before = decisions.slice(0, last + 1)
  return new Set(before.filter(({ committed }) => committed).map(({ xid }) => xid))
}

/** The clock was read by another process a moment before or after it was set. */
const edge = 50_000n

function shownIn(phases: Phase[], time: bigint, margin: bigint): Phase[] {
  return phases.filter(({ from, to }) => from - margin <= time && time <= to + margin)
}

interface Window {
  earliest: string
  latest: string
}

/** Around commits, around the changes of the clock, in the windows and anywhere. */
function chooseTarget(decisions: Decided[], phases: Phase[], windows: Window[], n: number): bigint {
  const phase = phases[random(phases.length)]!
  const at = decisions[random(decisions.length)]!.micros
  const near = BigInt(random(400_000) - 200_000)
  const anywhere = phase.from + BigInt(random(Number(phase.to - phase.from)))
  const { earliest, latest } = windows[random(windows.length)]!
  const [from, to] = [parseMicros(earliest), parseMicros(latest)]
  const inside = [from, to, from + BigInt(random(Number(to - from)))][random(3)]!
  return [at, inside, at + BigInt(random(3) - 1), (random(2) ? phase.from : phase.to) + near, inside, anywhere][n % 6]!
}

describe.each(majors)('PostgreSQL %s', (major) => {
  test('a time around changes of the clock is refused or restored exactly', async () => {
    const clock = clocks.get(major)!
    clock.set(firstOffset)
    const id = await readyCluster(berth, { pg_major_version: major })
    await until(async () => (await show(berth, id)).recovery_window !== null, 120)
    const { phases, decisions, all } = await writeWithSteps(id, clock)
    await until(async () => parseMicros((await show(berth, id)).recovery_window.latest) > phases.at(-1)!.to, 120)
    const windows = (await show(berth, id)).recovery_windows
    const tally = new Tally(`oracle-clock ${major}`)
    const tasks = Array.from({ length: targetCount(14, 0.22) }, (_, n) => async () => {
      const target = chooseTarget(decisions, phases, windows, n)
      const pitr_time = formatTime(target)
      const found = await restore(berth, `/v1/postgres/${id}/restore`, { pitr_time })
      const shown = shownIn(phases, target, edge)
      if ('refused' in found) {
        if (found.status === 422 && /gap|ambiguous|outside/.test(found.refused)) tally.note('refused')
        else tally.noteWrong('refused for another reason', `${pitr_time}: ${found.refused}`)
      } else if ('failed' in found) tally.noteWrong('failed', `${pitr_time}: ${found.failed}`)
      else {
        const truths = (shown.length > 0 ? shown : phases).map((phase) =>
          selectRows(all, truthIn(phase, decisions, phases, target)),
        )
        const isRight = truths.some((rows) => rows.join() === found.rows.join())
        if (!isRight) tally.noteWrong('wrong', `${pitr_time}: ${describeDifference(found.rows, truths[0]!)}`)
        else if (shownIn(phases, target, -edge).length > 1)
          tally.noteWrong('ambiguous', `${pitr_time} was shown twice, but restored`)
        else tally.note('right')
      }
    })
    await inTurn(tasks)
    tally.print()
    expect(tally.wrong).toEqual([])
    expect(tally.count('right')).toBeGreaterThan(0)
  }, 7_200_000)
})
