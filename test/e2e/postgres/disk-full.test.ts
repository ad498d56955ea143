import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, rmSync, statfsSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { accessOf, ask, attempt, controlGroups, destroy, readyCluster } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const isRoot = process.getuid?.() === 0
const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off' })
let id = ''

const show = async () => (await berth.call('GET', `/v1/postgres/${id}`)).body.data

/** The home gets a small file system of its own, so that filling it affects nothing else. */
beforeAll(async () => {
  if (!isRoot) return
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1500m,mode=711', 'tmpfs', berth.home])
  await berth.up()
  id = await readyCluster(berth, { pg_major_version: '17' })
  await ask(await accessOf(berth, id), 'direct', 'create table number as select generate_series(1, 1000) as n')
  await until(async () => (await show()).recovery_window !== null)
}, 180_000)

afterAll(async () => {
  const groups = isRoot ? controlGroups(berth) : []
  await Promise.all(berth.children.splice(0).map((child) => end(child)))
  await berth.cli('down')
  if (isRoot) await until(() => spawnSync('umount', [berth.home]).status === 0)
  await destroy(berth)
  for (const group of groups) await until(() => spawnSync('rmdir', [group]).status === 0 || !existsSync(group))
}, 120_000)

test.runIf(isRoot)(
  'a full disk shows in the health at once, and the cluster returns when there is space',
  async () => {
    const access = await accessOf(berth, id)
    const filler = `${berth.home}/filler`
    // The platform writes meanwhile, so what is free may not be free any more.
    await until(() => {
      rmSync(filler, { force: true })
      const { bavail, bsize } = statfsSync(berth.home)
      return spawnSync('fallocate', ['-l', String(bavail * bsize), filler]).status === 0
    })
    try {
      await until(async () => /the disk of the platform is full \(\d+ MB free\)/.test((await show()).health.reason), 15)
      // Its server stops when it cannot write WAL.
      const attempted = await attempt(access, 'direct', 'create table more as select generate_series(1, 3000000) as n')
      expect(attempted).toMatch(/No space left on device/)
      await until(async () => /the disk of the platform is full/.test((await show()).health.reason), 60)
    } finally {
      rmSync(filler)
    }
    await until(async () => (await show()).health.status === 'ok', 60)
    expect(await ask(access, 'direct', 'select count(*)::int as n from number')).toEqual([{ n: 1000 }])
  },
  180_000,
)
