import { spawnSync } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, readdirSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { killProcess } from '../../../src/drivers/host/process-list.ts'
import { clusterPaths } from '../../../src/drivers/postgres/paths.ts'
import type { RestoreSpec } from '../../../src/drivers/postgres/restore/driver.ts'
import { newId } from '../../../src/model/ids.ts'
import type { TestCluster } from '../../support/cluster.ts'
import {
  type Backup,
  commit,
  copyInRepository,
  cut,
  numbers,
  openRestoreBench,
  ownPiece,
  type RestoreBench,
  restoreInto,
  startSource,
  takeBackup,
  untilCopied,
} from '../../support/restore.ts'
import { mountXfs } from '../../support/storage/xfs.ts'
import { until } from '../../support/until.ts'

const filesystem = mountXfs()

describe.runIf(filesystem)('A copy that shares its blocks with a trusted backup', () => {
  let bench: RestoreBench
  let source: TestCluster
  let backup: Backup
  let end: string

  beforeAll(async () => {
    bench = await openRestoreBench(filesystem!.directory)
    source = await startSource(bench, '17')
    await commit(bench, source.id, 1)
    backup = await takeBackup(bench, source, 'first')
    await commit(bench, source.id, 2)
    end = await cut(bench, source.id)
  })
  afterEach(() => bench.removeTargets())
  afterAll(async () => {
    await bench?.remove()
    filesystem!.remove()
  }, 120_000)

  function specFor({ spec }: TestCluster, change: Partial<RestoreSpec> = {}): RestoreSpec {
    const { toolchain, uid } = spec
    const pieces = [ownPiece(source.id, end)]
    return { toolchain, uid, backup, pieces, timeline: 1, trusted: true, ...change }
  }

  /** Replaces the verifier: it checks names and sizes at once, but checksums only when the test allows it. */
  function patientVerifier({ spec: { toolchain } }: TestCluster) {
    const tools = `${bench.home.path}/${newId()}`
    mkdirSync(tools)
    const real = `${toolchain.tools}/pg_verifybackup`
    const wait = `case "$*" in *--skip-checksums*) ;; *) until [ -e ${tools}/go ]; do sleep 0.01; done ;; esac`
    writeFileSync(`${tools}/pg_verifybackup`, `#!/bin/sh\n${wait}\nexec ${real} "$@"\n`, { mode: 0o755 })
    return { toolchain: { ...toolchain, bin: tools, tools }, release: () => writeFileSync(`${tools}/go`, '') }
  }

  /** Copies the source's backup under another name and changes it by a command. */
  function damagedBackup(damage: (data: string) => void): Backup {
    const id = newId()
    copyInRepository(bench, source.id, id)
    damage(`${bench.root}/${id}/backups/first/data`)
    return { ...backup, clusterId: id }
  }

  /** Starts the verification with each inspection, like the platform, because the copy job may not have ended yet. */
  const untilVerified = async (id: string, spec: RestoreSpec) => {
    await until(async () => {
      await bench.restores.startVerification(id, spec)
      return (await bench.restores.inspectVerification(id)).is !== 'running'
    })
    return bench.restores.inspectVerification(id)
  }

  test('is usable before the checksums are verified', async () => {
    const target = await bench.newTarget(source)
    const { toolchain, release } = patientVerifier(target)
    const spec = specFor(target, { toolchain })
    await restoreInto(bench, target, spec)
    expect(await numbers(bench, target.id)).toEqual([1, 2])
    await bench.restores.startVerification(target.id, spec)
    expect(await bench.restores.inspectVerification(target.id)).toEqual({ is: 'running' })
    release()
    expect(await untilVerified(target.id, spec)).toEqual({ is: 'passed' })
    await bench.restores.remove(target.id)
    expect(readdirSync(clusterPaths(bench.home, target.id).directory).filter((name) => name.includes('copy'))).toEqual(
      [],
    )
  })

  test('is found damaged after it was made', async () => {
    const target = await bench.newTarget(source)
    const file = 'global/pg_control'
    const damaged = damagedBackup((data) => {
      const handle = openSync(`${data}/${file}`, 'r+')
      writeSync(handle, 'x', 4000) // after the part that the server reads
      closeSync(handle)
    })
    const spec = specFor(target, { backup: damaged })
    await bench.restores.startCopy(target.id, spec)
    expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'done' })
    const failed = {
      is: 'failed',
      reason: `backup first is damaged: checksum mismatch for file "${file}"`,
      damage: `checksum mismatch for file "${file}"`,
    }
    expect(await untilVerified(target.id, spec)).toEqual(failed)
    // The failed verification is not repeated.
    await bench.restores.startVerification(target.id, spec)
    expect(await bench.restores.inspectVerification(target.id)).toEqual(failed)
  })

  test.each([
    ['missing', (file: string) => rmSync(file)],
    ['too short', (file: string) => spawnSync('truncate', ['-s', '-1', file])],
  ])('is not made when a file is %s', async (_name, change) => {
    const target = await bench.newTarget(source)
    const damaged = damagedBackup((data) => change(`${data}/global/1213`))
    await bench.restores.startCopy(target.id, specFor(target, { backup: damaged }))
    expect(await untilCopied(bench.restores, target.id)).toEqual({
      is: 'failed',
      reason: expect.stringMatching(/^backup first is damaged: .*"global\/1213"/),
      damage: expect.stringMatching(/^"global\/1213"/),
    })
    expect(existsSync(clusterPaths(bench.home, target.id).data)).toBe(false)
  })

  test('is verified after the verification was killed, even without the WAL it was made with', async () => {
    const target = await bench.newTarget(source)
    const { toolchain, release } = patientVerifier(target)
    const spec = specFor(target, { toolchain })
    await bench.restores.startCopy(target.id, spec)
    expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'done' })
    const later = { ...spec, pieces: [{ ...spec.pieces[0]!, epoch: 9 }] }
    let job = await bench.jobs.inspectJob(`copy-${target.id}`)
    await until(async () => (await bench.jobs.inspectJob(`copy-${target.id}`)).is === 'ended') // the copy job
    await bench.restores.startVerification(target.id, later)
    await until(async () => {
      job = await bench.jobs.inspectJob(`copy-${target.id}`)
      return job.is === 'running' && job.pid !== undefined
    })
    killProcess((job as { pid: number }).pid, 'SIGKILL')
    await until(async () => (await bench.jobs.inspectJob(`copy-${target.id}`)).is === 'ended')
    expect(await bench.restores.inspectVerification(target.id)).toEqual({ is: 'running' })
    release()
    expect(await untilVerified(target.id, later)).toEqual({ is: 'passed' })
  })

  test('is not made before an untrusted backup is verified', async () => {
    const target = await bench.newTarget(source)
    const { toolchain, release } = patientVerifier(target)
    await bench.restores.startCopy(target.id, specFor(target, { toolchain, trusted: false }))
    await expectVerifiedFirst(target.id, release)
  })

  test('is a regular copy on another file system', async () => {
    const target = await bench.newTarget(source)
    const { directory } = clusterPaths(bench.home, target.id)
    mkdirSync(directory)
    spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=200m,mode=711', 'tmpfs', directory])
    try {
      const { toolchain, release } = patientVerifier(target)
      await bench.restores.startCopy(target.id, specFor(target, { toolchain }))
      await expectVerifiedFirst(target.id, release)
    } finally {
      await bench.restores.remove(target.id)
      spawnSync('umount', [directory])
    }
  })

  /** Expects a filled copy to keep its temporary name until the verifier is released. */
  async function expectVerifiedFirst(id: string, release: () => void): Promise<void> {
    const { directory, data } = clusterPaths(bench.home, id)
    const isFilled = () => {
      const [fresh] = readdirSync(`${directory}/copy`).filter((name) => name.startsWith('.copy~'))
      return fresh !== undefined && existsSync(`${directory}/copy/${fresh}/recovery.signal`)
    }
    await until(isFilled)
    expect(existsSync(data)).toBe(false)
    release()
    expect(await untilCopied(bench.restores, id)).toEqual({ is: 'done' })
    expect(await bench.restores.inspectVerification(id)).toEqual({ is: 'passed' })
  }
})
