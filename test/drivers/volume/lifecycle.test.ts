import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import { killProcess } from '../../../src/drivers/host/process-list.ts'
import { driverProgram } from '../../../src/drivers/host/program.ts'
import type { JobDriver, Supervisor } from '../../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import type { VolumeDriver, VolumeWork } from '../../../src/drivers/volume/driver.ts'
import { canGrowMounted, volumeDriver } from '../../../src/drivers/volume/lifecycle.ts'
import { findLoop } from '../../../src/drivers/volume/mounted.ts'
import { newId } from '../../../src/model/ids.ts'
import { mountXfs } from '../../support/storage/xfs.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const newVolumeId = () => `vol_${newId()}`
const newSnapshotId = () => `vs_${newId()}`
const gigabyte = 1024 ** 3

interface Bench {
  home: Home
  jobs: JobDriver
  driver: VolumeDriver
  remove(): Promise<void>
}

async function openBench(directory = temporaryDirectory(), canMount?: boolean): Promise<Bench> {
  const home = await openHome(`${directory}/h`, { uidBase: 300_000 })
  const supervisor: Supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  const jobs = jobDriver(supervisor)
  return {
    home,
    jobs,
    driver: volumeDriver({ home, jobs, ...(canMount === undefined ? {} : { canMount }) }),
    async remove() {
      await supervisor.stopTree({ timeoutSeconds: 10 })
      await removeTemporaryHome(directory)
    },
  }
}

async function done(look: () => Promise<VolumeWork>): Promise<void> {
  let last: VolumeWork = { is: 'running' }
  await until(async () => {
    last = await look()
    return last.is !== 'running'
  }, 60)
  expect(last).toEqual({ is: 'done' })
}

const boxes: ChildProcess[] = []

/** Mounts the disk in a private mount namespace, as a box does, reports it, and runs the commands that it reads. */
async function mountApart(
  source: string,
  at: string,
): Promise<{ run(command: string): Promise<string>; end(): Promise<void> }> {
  mkdirSync(at, { recursive: true })
  const script = `mount -o loop ${source} ${at} && echo ready; while read line; do eval "$line" 2>&1; echo "= $?"; done`
  const child = spawn('unshare', ['-m', '--propagation', 'private', 'sh', '-c', script], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  boxes.push(child)
  let text = ''
  child.stdout.on('data', (chunk) => {
    text += chunk
  })
  await until(() => text.includes('ready\n'))
  return {
    async run(command) {
      text = ''
      child.stdin.write(`${command}\n`)
      await until(() => /^= \d+\n/m.test(text), 60)
      return text
    },
    async end() {
      child.stdin.end()
      await until(() => child.exitCode !== null)
      await until(() => findLoop(source) === undefined)
    },
  }
}

afterEach(async () => {
  for (const child of boxes.splice(0)) {
    child.kill('SIGKILL')
    await until(() => child.exitCode !== null || child.signalCode !== null)
  }
})

describe.runIf(isRoot())('disks', () => {
  let bench: Bench
  let driver: VolumeDriver
  beforeAll(async () => {
    bench = await openBench()
    driver = bench.driver
  })
  afterAll(() => bench.remove())

  const make = async (sizeGb = 1) => {
    const id = newVolumeId()
    await done(() => driver.ensureVolume({ id, sizeGb }))
    return { id, ...driver.mountOf(id), at: `${bench.home.path}/at-${id}` }
  }

  test('can be mounted and written', async () => {
    expect(await driver.enforcesSize()).toBe(true)
    const volume = await make()
    expect(volume.kind).toBe('image')
    expect(statSync(volume.source).size).toBe(gigabyte)
    // The file is sparse: only filesystem tables are allocated.
    expect(statSync(volume.source).blocks * 512).toBeLessThan(50_000_000)
    expect(driver.measureVolume(volume.id)).toMatchObject({ blockSize: 4096, blocks: gigabyte / 4096 })
    const box = await mountApart(volume.source, volume.at)
    expect(findLoop(volume.source)).toMatch(/^7:\d+$/)
    await box.run(`echo kept > ${volume.at}/file; head -c 20000000 /dev/urandom > ${volume.at}/large`)
    await until(() => driver.measureVolume(volume.id)!.bytesUsed > 20_000_000)
    await box.end()
    expect(driver.measureVolume(volume.id)!.bytesUsed).toBeGreaterThan(20_000_000)
    await done(() => driver.ensureVolume({ id: volume.id, sizeGb: 1 }))
    const again = await mountApart(volume.source, volume.at)
    expect(await again.run(`cat ${volume.at}/file`)).toBe('kept\n= 0\n')
    await again.end()
  })

  test('enforce their size', async () => {
    const volume = await make()
    const box = await mountApart(volume.source, volume.at)
    expect(await box.run(`fallocate -l 1200M ${volume.at}/large`)).toMatch(/No space left/)
    await box.end()
  })

  test('grow while they are not mounted, and keep their content', async () => {
    const volume = await make()
    const box = await mountApart(volume.source, volume.at)
    await box.run(`echo kept > ${volume.at}/file`)
    await box.end()
    const both = await Promise.all([driver.extendVolume(volume.id, 2), driver.extendVolume(volume.id, 2)])
    expect(both).toEqual([{ needsRestart: false }, { needsRestart: false }])
    expect(await driver.extendVolume(volume.id, 1)).toEqual({ needsRestart: false })
    const again = await mountApart(volume.source, volume.at)
    expect(await again.run(`cat ${volume.at}/file`)).toBe('kept\n= 0\n')
    expect(await again.run(`fallocate -l 1200M ${volume.at}/large`)).toBe('= 0\n')
    await again.end()
    expect(driver.measureVolume(volume.id)!.blocks * 4096).toBe(2 * gigabyte)
  })

  const growUnderWriters = async () => {
    const volume = await make()
    const box = await mountApart(volume.source, volume.at)
    await box.run(`echo kept > ${volume.at}/file`)
    expect(await box.run(`fallocate -l 1200M ${volume.at}/large`)).toMatch(/No space left/)
    const both = await Promise.all([driver.extendVolume(volume.id, 2), driver.extendVolume(volume.id, 2)])
    expect(both).toEqual([{ needsRestart: false }, { needsRestart: false }])
    expect(await box.run(`fallocate -l 1200M ${volume.at}/large`)).toBe('= 0\n')
    expect(driver.measureVolume(volume.id)!.blocks * 4096).toBeGreaterThan(1.9 * gigabyte)
    // Grows again, even while the superblock on disk is out of date.
    await driver.extendVolume(volume.id, 2)
    await driver.extendVolume(volume.id, 30)
    expect(await box.run(`df --output=size -BG ${volume.at} | tail -n 1`)).toMatch(/^\s*(29|30)G\n/)
    expect(await box.run(`cat ${volume.at}/file`)).toBe('kept\n= 0\n')
    await box.end()
    await run('e2fsck', ['-f', '-n', volume.source])
  }

  const keepSizeWhileMounted = async () => {
    expect(await driver.growsAtStart()).toBe(true)
    const volume = await make()
    const box = await mountApart(volume.source, volume.at)
    expect(await driver.extendVolume(volume.id, 2)).toEqual({ needsRestart: true })
    // The kernel knows the ioctl: it refuses for lack of permission, not as unknown.
    const grow = run('perl', [driverProgram('volume/grow.pl'), volume.source, String(2 * gigabyte)])
    await expect(grow).rejects.toThrow('grow the filesystem: Operation not permitted')
    expect(await box.run(`fallocate -l 1200M ${volume.at}/large`)).toMatch(/No space left/)
    await box.end()
    expect(await driver.extendVolume(volume.id, 2)).toEqual({ needsRestart: false })
    expect(driver.measureVolume(volume.id)!.blocks * 4096).toBe(2 * gigabyte)
  }

  if (canGrowMounted()) test('grow while they are mounted and written', growUnderWriters)
  else test('keep their size while they are mounted, where the kernel wants it so', keepSizeWhileMounted)

  test('do not grow while they have a loop device but are not mounted', async () => {
    const volume = await make()
    const device = (await run('losetup', ['--find', '--show', volume.source])).stdout.trim()
    const grow = () => run('perl', [driverProgram('volume/grow.pl'), volume.source, String(2 * gigabyte)])
    try {
      await expect(grow()).rejects.toThrow(/has a loop device but is not mounted/)
    } finally {
      await run('losetup', ['-d', device])
    }
    await grow()
    expect(driver.measureVolume(volume.id)!.blocks * 4096).toBe(2 * gigabyte)
  })

  test('are copied consistently while they are written, and continue to work', async () => {
    const volume = await make()
    const box = await mountApart(volume.source, volume.at)
    // Each line goes to one file and then to another, so the second file never has more lines than the first.
    await box.run(
      `(while echo x >> ${volume.at}/first && sync ${volume.at}/first && echo x >> ${volume.at}/second; do :; done) & echo $!`,
    )
    await box.run(`head -c 100000000 /dev/urandom > ${volume.at}/large; sync`)
    const snapshotId = newSnapshotId()
    await done(() => driver.ensureSnapshot(volume.id, snapshotId))
    expect(driver.measureSnapshot(snapshotId)).toBeGreaterThan(100_000_000)
    const before = Number.parseInt(await box.run(`wc -l < ${volume.at}/second`), 10)
    await until(async () => Number.parseInt(await box.run(`wc -l < ${volume.at}/second`), 10) > before)

    const copyId = newVolumeId()
    await done(() => driver.ensureVolume({ id: copyId, sizeGb: 2, from: { snapshotId } }))
    const copy = driver.mountOf(copyId)
    execFileSync('e2fsck', ['-f', '-n', copy.source], { stdio: 'pipe' })
    const other = await mountApart(copy.source, `${volume.at}-copy`)
    const [first = 0, second = 0] = (
      await other.run(`wc -l < ${volume.at}-copy/first; wc -l < ${volume.at}-copy/second`)
    )
      .split('\n')
      .map(Number)
    expect(first - second).toBeGreaterThanOrEqual(0)
    expect(first - second).toBeLessThanOrEqual(1)
    expect(await other.run(`stat -c %s ${volume.at}-copy/large`)).toBe('100000000\n= 0\n')
    await other.end()
    expect(driver.measureVolume(copyId)!.blocks * 4096).toBe(2 * gigabyte)
    await driver.removeSnapshot(snapshotId)
    expect(driver.measureSnapshot(snapshotId)).toBe(0)
  })

  test('are thawed when the copy is killed, and copied by the next attempt', async () => {
    const volume = await make()
    const box = await mountApart(volume.source, volume.at)
    await box.run(`head -c 300000000 /dev/urandom > ${volume.at}/large; sync`)
    const id = newVolumeId()
    const job = `volume-copy-${id.replace('_', '-')}`
    const first = driver.ensureVolume({ id, sizeGb: 1, from: { volumeId: volume.id } })
    await until(async () => {
      const state = await bench.jobs.inspectJob(job)
      if (state.is !== 'running' || state.pid === undefined) return false
      killProcess(state.pid, 'SIGKILL')
      return true
    })
    expect((await first).is).not.toBe('done')
    expect(await box.run(`echo more > ${volume.at}/file; sync`)).toBe('= 0\n')
    await until(
      async () => (await driver.ensureVolume({ id, sizeGb: 1, from: { volumeId: volume.id } })).is === 'done',
      60,
    )
    expect(await box.run(`echo more >> ${volume.at}/file; sync`)).toBe('= 0\n')
    await box.end()
    execFileSync('e2fsck', ['-f', '-n', driver.mountOf(id).source], { stdio: 'pipe' })
    expect(await bench.jobs.inspectJob(job)).toEqual({ is: 'absent' })
  })

  test('are not copied while they are grown or mounted, which the lock of the image tells', async () => {
    const volume = await make()
    const child = spawn('flock', ['-x', volume.source, 'sh', '-c', 'echo locked; read line'], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    boxes.push(child)
    await once(child.stdout, 'data')
    const id = newVolumeId()
    const look = () => driver.ensureVolume({ id, sizeGb: 1, from: { volumeId: volume.id } })
    expect(await look()).toEqual({ is: 'running' })
    child.stdin.end()
    await done(look)
  })

  test('are copied once the kernel has released their loop device, whose mount is gone before', async () => {
    const volume = await make()
    const snapshotId = newSnapshotId()
    const device = (await run('losetup', ['--find', '--show', volume.source])).stdout.trim()
    try {
      expect(await driver.ensureSnapshot(volume.id, snapshotId)).toEqual({ is: 'running' })
    } finally {
      await run('losetup', ['-d', device])
    }
    await until(async () => (await driver.ensureSnapshot(volume.id, snapshotId)).is !== 'running')
    expect(await driver.ensureSnapshot(volume.id, snapshotId)).toEqual({ is: 'done' })
  })

  test('report a missing source', async () => {
    const id = newVolumeId()
    const from = { snapshotId: newSnapshotId() }
    expect(await driver.ensureVolume({ id, sizeGb: 1, from })).toEqual({
      is: 'failed',
      reason: 'the source of the copy does not exist',
    })
    await expect(driver.extendVolume(id, 2)).rejects.toThrow(/there is no volume/)
    expect(driver.measureVolume(id)).toBeUndefined()
    expect(() => driver.mountOf(id)).toThrow(/there is no volume/)
    expect(() => driver.mountOf('../x')).toThrow(/not the id/)
  })

  test('that were left half grown are grown by the next attempt', async () => {
    const volume = await make()
    truncateSync(volume.source, 2 * gigabyte)
    await driver.extendVolume(volume.id, 2)
    expect(driver.measureVolume(volume.id)!.blocks * 4096).toBe(2 * gigabyte)
  })

  test('leave no files', async () => {
    const volume = await make()
    await driver.removeVolume(volume.id)
    await driver.removeVolume(volume.id)
    expect(existsSync(volume.source)).toBe(false)
  })
})

test.runIf(isRoot())('share blocks with copies on filesystems with reflinks', async () => {
  const filesystem = mountXfs()
  if (!filesystem) throw new Error('xfs cannot be mounted here')
  const bench = await openBench(filesystem.directory)
  try {
    const [id, copyId] = [newVolumeId(), newVolumeId()]
    await done(() => bench.driver.ensureVolume({ id, sizeGb: 1 }))
    const { source } = bench.driver.mountOf(id)
    const box = await mountApart(source, `${bench.home.path}/at`)
    // More than half of the disk, so a full second copy would not fit.
    await box.run(`head -c 600000000 /dev/zero | tr '\\0' x > ${bench.home.path}/at/large; sync`)
    await done(() => bench.driver.ensureVolume({ id: copyId, sizeGb: 1, from: { volumeId: id } }))
    await box.end()
    expect(statSync(bench.driver.mountOf(copyId).source).blocks).toBeGreaterThan(1_000_000)
  } finally {
    await bench.remove()
    filesystem.remove()
  }
})

describe('directories, on hosts that cannot mount files', () => {
  let bench: Bench
  beforeAll(async () => {
    bench = await openBench(undefined, false)
  })
  afterAll(() => bench.remove())

  test('are volumes without an enforced size', async () => {
    const { driver } = bench
    const [id, copyId, snapshotId] = [newVolumeId(), newVolumeId(), newSnapshotId()]
    expect(await driver.enforcesSize()).toBe(false)
    await done(() => driver.ensureVolume({ id, sizeGb: 1 }))
    const { source, kind } = driver.mountOf(id)
    expect(kind).toBe('directory')
    writeFileSync(`${source}/file`, 'kept')
    expect(await driver.extendVolume(id, 5)).toEqual({ needsRestart: false })
    await done(() => driver.ensureSnapshot(id, snapshotId))
    writeFileSync(`${source}/file`, 'changed')
    await done(() => driver.ensureVolume({ id: copyId, sizeGb: 1, from: { snapshotId } }))
    expect(readFileSync(`${driver.mountOf(copyId).source}/file`, 'utf8')).toBe('kept')
    expect(driver.measureVolume(id)).toBeUndefined()
    await driver.removeVolume(id)
    expect(existsSync(source)).toBe(false)
  })
})
