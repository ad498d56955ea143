// Size limits of root filesystems, on a disk that can enforce them.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import type { MachineSpec } from '../../../src/model/app/machine-spec.ts'
import { type MachineBench, openMachineBench } from '../../support/machine-bench.ts'
import { btrfs } from '../../support/storage/btrfs.ts'

const megabyte = 1 / 1024

describe.runIf(isRoot())('the size of the root of a machine', () => {
  const place = btrfs()
  let bench: MachineBench

  beforeAll(async () => {
    bench = await openMachineBench(undefined, place.make())
  })

  afterAll(async () => {
    await bench?.remove()
    await place.remove()
  })

  const write = (spec: MachineSpec, megabytes: number, file: string) =>
    bench.sh(spec, `dd if=/dev/urandom of=${file} bs=1M count=${megabytes}`)
  const restart = async (spec: MachineSpec) => {
    await bench.machines.stopMachine(spec.id, spec.stop)
    await bench.machines.startMachine(spec)
  }

  test('is enforced after every start', async () => {
    const spec = await bench.newMachine({ rootGb: 16 * megabyte })
    for (let life = 0; life < 2; life++) {
      expect((await write(spec, 4, '/small')).code).toBe(0)
      expect(await write(spec, 40, '/big')).toMatchObject({
        code: expect.any(Number),
        err: expect.stringMatching(/quota exceeded/i),
      })
      expect((await bench.sh(spec, 'rm -f /big; echo fine')).out).toBe('fine\n')
      await restart(spec)
      expect((await bench.sh(spec, 'ls /small /big')).out).toBe('')
    }
    expect(await bench.printed(spec)).not.toContain('ubvolume')
  })

  test('can change for a persistent root', async () => {
    const spec = await bench.newMachine({ rootGb: 16 * megabyte, keepsRoot: true })
    expect((await write(spec, 8, '/kept')).code).toBe(0)
    const larger = { ...spec, instanceId: 'second', rootGb: 64 * megabyte }
    await bench.machines.startMachine(larger)
    expect((await write(larger, 32, '/big')).code).toBe(0)
    expect((await bench.sh(larger, 'ls /kept')).out).toBe('/kept\n')
    const { rootGb: _, ...unlimited } = { ...larger, instanceId: 'third' }
    await bench.machines.startMachine(unlimited)
    expect((await write(unlimited, 64, '/bigger')).code).toBe(0)
  })

  test('is unlimited by default', async () => {
    const spec = await bench.newMachine()
    expect((await write(spec, 64, '/big')).code).toBe(0)
  })
})
