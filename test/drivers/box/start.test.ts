// Boxes that cannot start, and what is left of boxes that nobody knows any more.
import { existsSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { BoxStartError } from '../../../src/drivers/box/driver.ts'
import { boxNetwork } from '../../../src/drivers/box/network.ts'
import { boxPaths } from '../../../src/drivers/box/paths.ts'
import { cgroupDriver, cgroupName } from '../../../src/drivers/host/cgroup.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { type BoxBench, listLinks, openBoxBench } from '../../support/box.ts'
import { until } from '../../support/until.ts'

let bench: BoxBench

beforeAll(async () => {
  bench = await openBoxBench()
})
afterAll(() => bench?.remove())

describe.runIf(isRoot())('a box whose programs were deleted', () => {
  test('says why it does not start, and stays down until it is started again', async () => {
    const spec = await bench.newBox()
    await bench.sh(spec, 'rm /bin /lib /lib64 /sbin')
    await bench.boxes.stopBox(spec.id)
    const failure = await bench.boxes.ensureBox(spec).catch((error: unknown) => error)
    expect(failure).toBeInstanceOf(BoxStartError)
    expect((failure as Error).message).toMatch(
      /^its first process ends at once \(execvp .*: No such file or directory\)$/,
    )
    expect(await bench.boxes.inspectBox(spec.id)).toEqual({ is: 'down' })
    expect(await bench.supervisor.inspectService(`sandbox-${spec.id}`)).toMatchObject({ is: 'down', wanted: false })
  })
})

describe('what is left of a box', () => {
  test('is found and removed, and that of another one is not', async () => {
    const [stray, other] = [await bench.newBox(), await bench.newBox()]
    expect(bench.boxes.listBoxes()).toEqual(expect.arrayContaining([stray.id, other.id]))
    if (isRoot()) expect(bench.boxes.findSlot(stray.id)).toBe(stray.slot)
    await bench.boxes.removeStray(stray.id, { keepFiles: false })
    await bench.boxes.removeSlot(stray.slot)
    expect(bench.boxes.listBoxes()).not.toContain(stray.id)
    expect(existsSync(boxPaths(bench.home, stray.id).directory)).toBe(false)
    expect(cgroupDriver().listCgroups()).not.toContain(cgroupName(bench.home, `sandbox-${stray.id}`))
    await until(() => !listLinks().includes(boxNetwork(bench.home, stray.slot).link))
    expect((await bench.sh(other, 'echo still here')).out).toBe('still here\n')
    await bench.boxes.removeStray(other.id, { keepFiles: true })
    expect(existsSync(boxPaths(bench.home, other.id).upper)).toBe(true)
    expect(await bench.boxes.inspectBox(other.id)).toEqual({ is: 'down' })
  })
})
