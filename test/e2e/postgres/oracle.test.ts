import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { accessOf, ask, destroy, readyCluster, untilReady } from '../../support/client.ts'
import { type Decided, truthAt } from '../../support/postgres/oracle.ts'
import {
  backUp,
  completedBackups,
  describeDifference,
  formatTime,
  inTurn,
  majors,
  parseMicros,
  pause,
  random,
  restore,
  rowsOf,
  seconds,
  selectRows,
  show,
  Tally,
  targetCount,
  unlimited,
  writeDuring,
} from '../../support/postgres/oracle-platform.ts'
import { until } from '../../support/until.ts'

const count = targetCount(10, 0.4)
const berth = new Berth(unlimited)
beforeAll(() => berth.up())
afterAll(() => destroy(berth))

async function prepared(major: string) {
  const id = await readyCluster(berth, { pg_major_version: major })
  await until(async () => (await show(berth, id)).recovery_window !== null, 60)
  const written = await writeDuring(berth, id, async () => {
    await pause((seconds * 1000) / 2)
    // A backup in the middle of the writes, which is a restore target too.
    await backUp(berth, id)
    await pause((seconds * 1000) / 2)
  })
  const last = written.decisions.at(-1)!.micros
  await until(async () => parseMicros((await show(berth, id)).recovery_window.latest) > last + 1_000_000n, 60)
  const [backup] = await completedBackups(berth, id)
  return { id, ...written, backup, window: (await show(berth, id)).recovery_window }
}

/** Chooses edge cases as target times; the rest is random. */
function chooseTargets(
  decisions: Decided[],
  window: { earliest: string; latest: string },
  backup: { started_at: string; finished_at: string },
): bigint[] {
  const [earliest, latest] = [parseMicros(window.earliest), parseMicros(window.latest)]
  const last = decisions.at(-1)!.micros
  const inBackup = (parseMicros(backup.started_at) + parseMicros(backup.finished_at)) / 2n
  const corners = [earliest, latest, latest - 1n, last, last + 500_000n, inBackup]
  const others = Array.from({ length: Math.max(0, count - corners.length) }, (_, i) => {
    const at = decisions[random(decisions.length)]!.micros
    return [at, at - 1n, at + 1n, at + BigInt(random(20_000))][i % 4]!
  })
  return [...corners, ...others].filter((target) => target >= earliest && target <= latest)
}

describe.each(majors)('PostgreSQL %s', (major) => {
  test('every restore contains exactly what was committed at its target time', async () => {
    const { id, decisions, backup, window, all } = await prepared(major)
    expect(decisions.length).toBeGreaterThan(100)
    const offsets = [0, 60, 345, -210, 1439, -1439]
    const tally = new Tally('commits', major)
    const tasks = chooseTargets(decisions, window, backup).map((target, i) => async () => {
      const pitr_time = formatTime(target, offsets[i % offsets.length]!)
      const found = await restore(berth, `/v1/postgres/${id}/restore`, { pitr_time })
      const expected = selectRows(all, truthAt(decisions, target))
      if ('hung' in found) tally.noteWrong('hung', `${pitr_time}: ${found.hung}`)
      else if (!('rows' in found)) tally.noteWrong('other fault', `${pitr_time}: ${JSON.stringify(found)}`)
      else if (found.rows.join() === expected.join()) tally.note('right')
      else tally.noteWrong('wrong', `${pitr_time}: ${describeDifference(found.rows, expected)}`)
    })
    await inTurn(tasks)
    tally.print()
    expect(tally.wrong, tally.summary).toEqual([])
    expect(tally.count('right')).toBe(tasks.length)
    expect(await rowsOf(berth, id)).toEqual(all)
  }, 7_200_000)

  test('a restored backup contains the state at its end, and nothing later', async () => {
    const id = await readyCluster(berth, { pg_major_version: major })
    await until(async () => (await completedBackups(berth, id)).length === 1, 60)
    const access = await accessOf(berth, id)
    await ask(access, 'direct', 'create table log (writer int, n int, xid xid8 default pg_current_xact_id())')
    await ask(access, 'direct', 'insert into log values (1, 1)')
    await backUp(berth, id)
    await ask(access, 'direct', 'insert into log values (1, 2)')
    const [newest, oldest] = await completedBackups(berth, id)
    const rows = await Promise.all(
      [oldest, newest].map(async (backup) => {
        const found = await restore(berth, `/v1/postgres/${id}/restore`, { backup_id: backup.id })
        return 'rows' in found ? found.rows.map((row) => row.split('@')[0]) : found
      }),
    )
    expect(rows).toEqual([[], ['1/1']])
    const fork = (await berth.ok('POST', `/v1/postgres/${id}/fork`, {})).data.id
    await untilReady(berth, fork)
    expect(await rowsOf(berth, fork)).toEqual(await rowsOf(berth, id))
  }, 300_000)
})
