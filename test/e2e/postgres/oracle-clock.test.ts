// The clock of a server is set forward and back while it writes. A time is refused, or restored exactly.
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy, readyCluster } from '../../support/client.ts'
import { FakeClock } from '../../support/postgres/fake-clock.ts'
import type { Decided } from '../../support/postgres/oracle.ts'
import {
  backUp,
  describeDifference,
  formatTime,
  inTurn,
  type Major,
  majors,
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

interface Source extends Written {
  major: Major
  id: string
  phases: Phase[]
  windows: Window[]
}

async function prepare(major: Major): Promise<Source> {
  const clock = clocks.get(major)!
  clock.set(firstOffset)
  const id = await readyCluster(berth, { pg_major_version: major })
  await until(async () => (await show(berth, id)).recovery_window !== null, 120)
  const written = await writeWithSteps(id, clock)
  const end = written.phases.at(-1)!.to
  await until(async () => parseMicros((await show(berth, id)).recovery_window.latest) > end, 120)
  return { major, id, ...written, windows: (await show(berth, id)).recovery_windows }
}

async function check({ id, phases, decisions, all, windows }: Source, n: number, tally: Tally): Promise<void> {
  const target = chooseTarget(decisions, phases, windows, n)
  const pitr_time = formatTime(target)
  const found = await restore(berth, `/v1/postgres/${id}/restore`, { pitr_time })
  if ('hung' in found) return tally.noteWrong('hung', `${pitr_time}: ${found.hung}`)
  if ('failed' in found) return tally.noteWrong('other fault', `${pitr_time} failed: ${found.failed}`)
  if ('refused' in found) {
    if (found.status === 422 && /gap|ambiguous|outside/.test(found.refused)) return tally.note('refused')
    return tally.noteWrong('other fault', `${pitr_time} was refused: ${found.refused}`)
  }
  const shown = shownIn(phases, target, edge)
  const truths = (shown.length > 0 ? shown : phases).map((phase) =>
    selectRows(all, truthIn(phase, decisions, phases, target)),
  )
  const isRight = truths.some((rows) => rows.join() === found.rows.join())
  if (!isRight) return tally.noteWrong('wrong', `${pitr_time}: ${describeDifference(found.rows, truths[0]!)}`)
  if (shownIn(phases, target, -edge).length > 1)
    return tally.noteWrong('other fault', `${pitr_time} was shown twice, but restored`)
  tally.note('right')
}

test('a time around changes of the clock is refused or restored exactly', async () => {
  const sources = await Promise.all(majors.map(prepare))
  const tallies = new Map(majors.map((major) => [major, new Tally('clock steps', major)]))
  const count = targetCount(7, 0.22)
  const tasks = sources.flatMap((source) =>
    Array.from({ length: count }, (_, n) => () => check(source, n, tallies.get(source.major)!)),
  )
  await inTurn(tasks)
  for (const tally of tallies.values()) {
    tally.print()
    expect.soft(tally.wrong, tally.summary).toEqual([])
    expect.soft(tally.count('right')).toBeGreaterThan(0)
  }
}, 14_400_000)
