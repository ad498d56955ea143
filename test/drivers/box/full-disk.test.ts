// Services that are defined while the disk is full. Root may still write, the programs in a box may not.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { BoxServices } from '../../../src/drivers/box/service/driver.ts'
import { boxServices } from '../../../src/drivers/box/service/service.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { isDiskFull } from '../../../src/model/disk-full.ts'
import { describeError } from '../../../src/model/errors.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { diskFullProblem, type Service } from '../../../src/model/sandbox/service.ts'
import { stateOf } from '../../../src/model/sandbox/service-state.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { smallExt4 } from '../../support/storage/btrfs.ts'
import { until } from '../../support/until.ts'

const service: Service = {
  name: 'late',
  cmd: 'sleep',
  args: ['1000'],
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

describe.runIf(isRoot())('a full disk', () => {
  const place = smallExt4()
  let bench: BoxBench
  let services: BoxServices
  let spec: BoxSpec

  beforeAll(async () => {
    bench = await openBoxBench(undefined, place.make())
    services = boxServices(bench)
    spec = await bench.newBox()
  })

  afterAll(async () => {
    await bench?.remove()
    await place.remove()
  })

  /** As the background loop does it. */
  const ensure = () =>
    services.ensureService(spec, { name: service.name, service, environment: {} }).then(
      () => null,
      (error) => describeError(error),
    )

  test('is the reason why a service does not start, which starts when there is space', async () => {
    // In pieces of decreasing size, so that the last block is used.
    await bench.sh(spec, 'for size in 400M 64K 4K 1; do head -c $size /dev/zero >> big; done; sync -f .')
    await bench.sh(spec, 'for file in $(seq 3000); do echo x > "fill-$file" || break; done; sync -f .')
    const problem = await ensure()
    const saysWhy = () => {
      const state = stateOf(service, services.inspectService(spec.id, service), true)
      const isSaid = state.error === diskFullProblem || services.isDiskFull(spec.id)
      return state.status !== 'running' && (isSaid || (problem !== null && isDiskFull(problem)))
    }
    expect({ problem, state: services.inspectService(spec.id, service), why: saysWhy() }).toMatchObject({ why: true })
    await bench.sh(spec, 'rm -f big fill-*; sync -f .')
    await until(async () => {
      await ensure()
      return stateOf(service, services.inspectService(spec.id, service), true).status === 'running'
    }, 60)
  })
})
