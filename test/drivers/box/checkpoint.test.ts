import { existsSync, globSync, mkdirSync, readdirSync, readFileSync, renameSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { checkpointDriver } from '../../../src/drivers/box/checkpoint/checkpoint.ts'
import { stopCopies } from '../../../src/drivers/box/checkpoint/copy.ts'
import type { CheckpointDriver, CopyState } from '../../../src/drivers/box/checkpoint/driver.ts'
import { withSubvolumes } from '../../../src/drivers/box/checkpoint/subvolume.ts'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { btrfs, type Place } from '../../support/storage/btrfs.ts'
import { temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const thisDisk = (): Place => ({ make: () => temporaryDirectory(), remove: () => undefined })

async function ended(look: () => Promise<CopyState>): Promise<CopyState> {
  for (;;) {
    const state = await look()
    if (state.is !== 'running') return state
  }
}

function openDriver(bench: BoxBench, jobs = jobDriver(bench.supervisor)): CheckpointDriver {
  return checkpointDriver({ home: bench.home, jobs, cgroups: cgroupDriver() })
}

/** A job driver whose copies never end by themselves. */
function endlessDriver(bench: BoxBench): CheckpointDriver {
  const jobs = jobDriver(bench.supervisor)
  const endless = (word: string) => (word === 'cp' ? ['sh', '-c', 'cp "$@"; exec sleep 1000', 'cp'] : [word])
  return openDriver(bench, {
    ...jobs,
    ensureJob: (name, spec) => jobs.ensureJob(name, { ...spec, command: spec.command.flatMap(endless) }),
  })
}

const places = isRoot() ? { 'this disk': thisDisk, btrfs } : { 'this disk': thisDisk }

describe.each(Object.entries(places))('on %s', (_name, open) => {
  const place = open()
  let bench: BoxBench
  let driver: CheckpointDriver
  let spec: BoxSpec
  let directory: string
  const sh = async (script: string) => {
    const { code, out, err } = await bench.sh(spec, script)
    return code === 0 ? out.trim() : `${code} ${err}`
  }
  const boxes = () => withSubvolumes(bench.boxes, bench.home)
  const make = (checkpoint: string) => ended(() => driver.makeCheckpoint(spec, checkpoint))
  const prepare = (from: string, kept: string) => ended(() => driver.prepareRestore(spec, from, kept))
  const freezers = () => globSync(`/sys/fs/cgroup/freezer/*${spec.id}*`)

  async function restore(from: string, kept: string): Promise<void> {
    expect(await prepare(from, kept)).toEqual({ is: 'done' })
    await bench.boxes.stopBox(spec.id)
    await driver.swapLayers(spec, kept)
    await boxes().ensureBox(spec)
    await driver.abandonCopy(spec, kept)
  }

  beforeAll(async () => {
    bench = await openBoxBench(undefined, place.make())
    driver = openDriver(bench)
    spec = bench.newSpec()
    directory = `${bench.home.path}/sandbox/${spec.id}`
    await boxes().ensureBox(spec)
  })

  afterAll(async () => {
    await bench?.remove()
    await place.remove()
  })

  test('restores files that were changed, removed or hidden', async () => {
    await sh(`
      mkdir d && cd d && echo one > file && ln file hard && ln -s /etc/shadow link && truncate -s 1G sparse
      mkdir closed && echo x > closed/secret && chmod 0 closed closed/secret
      echo owned > owned && chown 1234:5678 owned && chmod 4751 owned
      rm /etc/debian_version && rm -rf /usr/share/doc && mkdir /usr/share/doc && echo mine > /usr/share/doc/mine
      rm /usr/bin/yes`)
    const look = () =>
      sh(`cd d && stat -c '%n %a %u:%g %h %s %F %Y' file hard link sparse closed closed/secret owned && cat file owned
        du -k sparse | cut -f 1; ls /usr/share/doc /etc/debian_version /usr/bin/yes 2>&1; true`)
    const before = await look()
    expect(before).toContain('owned 4751 1234:5678')
    expect(before).toContain('mine')
    expect(await make('v1')).toEqual({ is: 'done' })
    expect(await look()).toBe(before)
    await sh(
      'cd d && echo two > file && rm -rf closed owned sparse && echo back > /usr/bin/yes && touch /etc/debian_version',
    )
    await restore('v1', 'auto-1')
    expect(await look()).toBe(before)
    await restore('auto-1', 'auto-2')
    expect(await sh('cat d/file; cat /usr/bin/yes')).toBe('two\nback')
    await restore('v1', 'auto-3')
    expect(await look()).toBe(before)
  })

  test('contains the files of one moment and thaws the processes', async () => {
    // Files are copied in the order of creation, so the copy of these two is far apart.
    await sh(`mkdir many && cd many && echo 0 > a-first
      for i in $(seq 400); do head -c 20000 /dev/zero > f$i; done; echo 0 > z-last
      (i=0; while :; do i=$((i+1)); echo $i > a-first; echo $i > z-last; done) > /dev/null 2>&1 &`)
    expect(await make('v2')).toEqual({ is: 'done' })
    const at = (await sh('cat many/z-last')) || '0'
    await until(async () => Number(await sh('cat many/z-last')) > Number(at))
    expect(freezers()).toEqual([])
    await restore('v2', 'auto-4')
    const [first, last] = (await sh('cat many/a-first many/z-last')).split('\n').map(Number)
    // The copy may fall between the two writes of a round, or between truncating and writing a file.
    if (cgroupDriver().cgroupsAvailable()) expect([first, first! - 1]).toContain(last ?? first)
  })

  test('measures the blocks that were written, not the size of sparse files', async () => {
    const before = await driver.measureLayers(spec.id)
    await sh('head -c 3000000 /dev/urandom > counted; truncate -s 5G hole; sync counted')
    expect((await driver.measureLayers(spec.id)) - before).toSatisfy(
      (more: number) => more > 2_900_000 && more < 4_000_000,
    )
  })

  test('is not made again when it is requested twice', async () => {
    await sh('echo 1 > again')
    await make('v3')
    await sh('echo 2 > again')
    expect(await make('v3')).toEqual({ is: 'done' })
    await restore('v3', 'auto-5')
    expect(await sh('cat again')).toBe('1')
    await driver.swapLayers(spec, 'auto-5')
    expect(await prepare('v3', 'auto-5')).toEqual({ is: 'done' })
    expect(await sh('cat again')).toBe('1')
  })

  test('is swapped in completely, wherever an earlier attempt was interrupted', async () => {
    await sh('echo old > cut')
    await make('v4')
    await sh('echo new > cut')
    const inPlace = (layer: string) => `${directory}/${layer}`
    let kept = 10
    for (const cuts of [1, 2, 3, 4]) {
      const name = `auto-${++kept}`
      await prepare('v4', name)
      await bench.boxes.stopBox(spec.id)
      const prepared = `${directory}/checkpoint/restore~${name}`
      const keeping = `${directory}/checkpoint/.kept~${name}`
      mkdirSync(keeping)
      const renames = readdirSync(prepared).flatMap((layer) => [
        [inPlace(layer), `${keeping}/${layer}`],
        [`${prepared}/${layer}`, inPlace(layer)],
      ])
      for (const [from, to] of renames.slice(0, cuts)) renameSync(from!, to!)
      // A request starts the box at this moment.
      await boxes().ensureBox(spec)
      await bench.boxes.stopBox(spec.id)
      await driver.swapLayers(spec, name)
      await bench.boxes.stopBox(spec.id)
      await boxes().ensureBox(spec)
      expect(await sh('cat cut')).toBe('old')
      await sh('echo new > cut')
      expect(readdirSync(`${directory}/checkpoint`).filter((entry) => entry.includes('~'))).toEqual([])
    }
  })

  test('is readable inside while it is one of the last five, and read-only', async () => {
    await sh('echo seen > seen; chown 1234:5678 seen; mkdir -p /usr/local/seen; rm -f /usr/bin/tac')
    await make('v20')
    await sh('echo later > seen; touch /usr/bin/tac')
    const view = '/.sprite/checkpoints/v20'
    const look = `cd ${view} && cat home/sprite/seen && stat -c %u:%g home/sprite/seen && ls -d usr/local/seen etc/passwd
      ls usr/bin/tac 2>&1 | grep -o 'No such file'`
    const seen = 'seen\n1234:5678\netc/passwd\nusr/local/seen\nNo such file'
    expect(await sh(look)).toBe(seen)
    for (const attempt of [
      `echo x > ${view}/home/sprite/seen`,
      `rm -rf ${view}/home`,
      `rmdir ${view}`,
      `perl -e 'rename "${view}", "/x" or exit 1'`,
      `umount ${view}`,
      `mkdir /.sprite/checkpoints/v99`,
      `mount -o remount,rw ${view}`,
    ])
      expect((await bench.sh(spec, attempt)).code, attempt).not.toBe(0)
    expect((await bench.sh(spec, 'cat /proc/mounts')).out).not.toContain(bench.directory)
    await bench.boxes.stopBox(spec.id)
    await boxes().ensureBox(spec)
    expect(await sh(look)).toBe(seen)
    // This works even while a process has its working directory there.
    await sh(`cd ${view}/home/sprite && { sleep 1000 > /dev/null 2>&1 & }`)
    for (const later of [21, 22, 23, 24, 25]) await make(`v${later}`)
    expect(await sh('ls /.sprite/checkpoints')).toBe('v21\nv22\nv23\nv24\nv25')
    await driver.removeCheckpoint(spec.id, 'v24')
    expect(await sh('ls /.sprite/checkpoints')).toBe('v20\nv21\nv22\nv23\nv25')
    expect(await sh(look)).toBe(seen)
    await restore('v20', 'auto-20')
    expect(await sh('ls /.sprite/checkpoints; cat seen /.sprite/checkpoints/auto-20/home/sprite/seen')).toBe(
      'auto-20\nv21\nv22\nv23\nv25\nseen\nlater',
    )
    expect((await bench.sh(spec, 'grep -c " /.sprite/checkpoints/" /proc/mounts')).out.trim()).toBe('10')
  })

  test('is removed, and with the sandbox nothing is left', async () => {
    await make('v5')
    await driver.removeCheckpoint(spec.id, 'v5')
    await driver.removeCheckpoint(spec.id, 'v5')
    expect(readdirSync(`${directory}/checkpoint`)).not.toContain('v5')
    await driver.tidy(spec)
    expect(readdirSync(bench.home.tree).filter((name) => name.startsWith('checkpoint'))).toEqual([])
    await bench.boxes.removeBox(spec)
    expect(existsSync(directory)).toBe(false)
    expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(spec.id)
    await until(() => readdirSync(`${bench.home.path}/trash`).length === 0)
  })
})

describe('an interrupted copy', () => {
  let bench: BoxBench
  beforeAll(async () => {
    bench = await openBoxBench()
  })
  afterAll(() => bench?.remove())

  test('leaves no files and no frozen processes', async () => {
    const spec = await bench.newBox()
    const driver = openDriver(bench)
    const jobs = jobDriver(bench.supervisor)
    await bench.sh(spec, 'echo all > f; sleep 1000 >/dev/null 2>&1 &')
    const place = `${bench.home.path}/sandbox/${spec.id}/checkpoint`
    const copying = ended(() => endlessDriver(bench).makeCheckpoint(spec, 'v1'))
    await until(() => existsSync(`${place}/.new~v1/upper`))
    let job = await jobs.inspectJob(`checkpoint-${spec.id}-v1`)
    await until(async () => {
      job = await jobs.inspectJob(`checkpoint-${spec.id}-v1`)
      return job.is === 'running' && job.pid !== undefined
    })
    process.kill((job as { pid: number }).pid, 'SIGKILL')
    expect(await copying).toMatchObject({ is: 'failed', reason: expect.stringContaining('copied') })
    expect(existsSync(`${place}/v1`)).toBe(false)
    await driver.abandonCopy(spec, 'v1')
    expect(readdirSync(place)).toEqual([])
    expect((await bench.sh(spec, 'echo alive')).out.trim()).toBe('alive')
    expect(globSync(`/sys/fs/cgroup/freezer/*${spec.id}*`)).toEqual([])
    expect(await ended(() => driver.makeCheckpoint(spec, 'v2'))).toEqual({ is: 'done' })
  })

  test('does not block the shutdown, and is made when it is requested again', async () => {
    const spec = await bench.newBox()
    const driver = openDriver(bench)
    await bench.sh(spec, 'echo all > f')
    const place = `${bench.home.path}/sandbox/${spec.id}/checkpoint`
    expect(await endlessDriver(bench).makeCheckpoint(spec, 'v1')).toEqual({ is: 'running' })
    await until(() => existsSync(`${place}/.new~v1/upper`))
    await stopCopies(bench.home, jobDriver(bench.supervisor))
    expect(readdirSync(bench.home.tree).filter((name) => name.startsWith('checkpoint'))).toEqual([])
    await bench.boxes.stopBox(spec.id)
    expect(await bench.boxes.inspectBox(spec.id)).toEqual({ is: 'down' })
    expect(await ended(() => driver.makeCheckpoint(spec, 'v1'))).toEqual({ is: 'done' })
  })
})

test('without isolation it is a copy of the root directory', async () => {
  const bench = await openBoxBench({
    mode: 'none',
    network: false,
    isolation: { kind: 'none', network: 'host', gap: 'nothing is isolated' },
  })
  try {
    const spec = await bench.newBox()
    const driver = openDriver(bench)
    await bench.sh(spec, 'echo one > word')
    expect(await ended(() => driver.makeCheckpoint(spec, 'v1'))).toEqual({ is: 'done' })
    await bench.sh(spec, 'echo two > word')
    await ended(() => driver.prepareRestore(spec, 'v1', 'auto-1'))
    await bench.boxes.stopBox(spec.id)
    await driver.swapLayers(spec, 'auto-1')
    await bench.boxes.ensureBox(spec)
    expect((await bench.sh(spec, 'cat word')).out.trim()).toBe('one')
  } finally {
    await bench.remove()
  }
})
