// A sandbox that has used up its disk quota, on btrfs.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { checkpointDriver } from '../../../src/drivers/box/checkpoint/checkpoint.ts'
import { withSubvolumes } from '../../../src/drivers/box/checkpoint/subvolume.ts'
import { type BoxDriver, BoxFileError } from '../../../src/drivers/box/driver.ts'
import type { BoxServices } from '../../../src/drivers/box/service/driver.ts'
import { boxServices } from '../../../src/drivers/box/service/service.ts'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import type { Service } from '../../../src/model/sandbox/service.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { btrfs } from '../../support/storage/btrfs.ts'
import { until } from '../../support/until.ts'

const megabyte = 1 / 1024

describe.runIf(isRoot())('a full disk quota', () => {
  const place = btrfs()
  let bench: BoxBench
  let boxes: BoxDriver
  let services: BoxServices
  let spec: BoxSpec
  const loop: Service = {
    name: 'loop',
    cmd: 'sh',
    args: ['-c', 'while :; do echo again; sleep 0.1; done'],
    needs: [],
    httpPort: null,
    env: {},
    dir: null,
    health: null,
    wanted: true,
    revision: 1,
    stopMs: null,
    problem: null,
  }
  const isReady = () => {
    const found = services.inspectService(spec.id, loop)
    return found.is === 'up' && found.ready && found.begunAtMs !== undefined
  }
  const write = (megabytes: number, file = 'big') =>
    bench.sh(spec, `head -c ${megabytes}M /dev/urandom > ${file} && sync -f ${file}`)

  beforeAll(async () => {
    bench = await openBoxBench(undefined, place.make())
    boxes = withSubvolumes(bench.boxes, bench.home)
    services = boxServices({ home: bench.home, boxes })
    spec = { ...bench.newSpec(), storageGb: 32 * megabyte }
    await boxes.ensureBox(spec)
    await services.ensureService(spec, { name: loop.name, service: loop, environment: {} })
    await until(() => isReady())
  })

  afterAll(async () => {
    await bench?.remove()
    await place.remove()
  })

  async function put(file: string, megabytes: number): Promise<string> {
    const helper = boxes.startFileHelper(spec, 'write', file, '', '')
    try {
      async function* body() {
        for (let piece = 0; piece < megabytes; piece++) yield Buffer.alloc(1024 * 1024, 'x')
      }
      helper.sendBody(body()).catch(() => helper.input.destroy())
      return (await helper.next('forever'))[0]
    } catch (error) {
      if (error instanceof BoxFileError) return error.code
      throw error
    } finally {
      helper.end()
    }
  }

  test('fails further writes of commands and uploads, and ends no process', async () => {
    expect((await boxes.isolation()).limitsStorage).toBe(true)
    const before = services.inspectService(spec.id, loop)
    expect(await write(100)).toMatchObject({ code: expect.any(Number), err: expect.stringContaining('quota exceeded') })
    expect(await put('/home/sprite/other', 100)).toBe('EDQUOT')
    expect((await bench.sh(spec, 'echo fine; ls /home/sprite')).out).toBe('fine\nbig\n')
    expect(services.inspectService(spec.id, loop)).toEqual(before)
  })

  test('allows writes again when space is freed or the limit is raised', async () => {
    expect((await bench.sh(spec, 'rm big && sync -f .')).code).toBe(0)
    await until(async () => (await put('/home/sprite/other', 8)) !== 'EDQUOT')
    await boxes.ensureBox({ ...spec, storageGb: 256 * megabyte })
    expect((await write(100)).code).toBe(0)
  })

  test('is in force after a restore', async () => {
    const driver = checkpointDriver({ home: bench.home, jobs: jobDriver(bench.supervisor), cgroups: cgroupDriver() })
    await bench.sh(spec, 'rm -f big other')
    expect(await driver.makeCheckpoint(spec, 'v1')).toEqual({ is: 'done' })
    expect(await driver.prepareRestore(spec, 'v1', 'auto-1')).toEqual({ is: 'done' })
    await boxes.stopBox(spec.id)
    await driver.swapLayers(spec, 'auto-1')
    await boxes.ensureBox(spec)
    expect((await write(100)).err).toContain('quota exceeded')
    await until(() => services.inspectService(spec.id, loop).is === 'up')
    for (const name of ['v1', 'auto-1']) await driver.removeCheckpoint(spec.id, name)
  })
})
