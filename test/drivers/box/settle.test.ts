// Services that are made to match their rows.
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { BoxServices } from '../../../src/drivers/box/service/driver.ts'
import { boxServices } from '../../../src/drivers/box/service/service.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import type { Service } from '../../../src/model/sandbox/service.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { until } from '../../support/until.ts'

let bench: BoxBench
let services: BoxServices
let spec: BoxSpec

beforeAll(async () => {
  bench = await openBoxBench()
  services = boxServices(bench)
  spec = await bench.newBox()
})
afterAll(() => bench?.remove())

const row = (name: string, mark: string, more: Partial<Service> = {}): Service => ({
  name,
  cmd: 'sh',
  args: ['-c', `trap 'exit 7' TERM; while :; do sleep 0.02; done`, mark],
  needs: [],
  httpPort: null,
  env: {},
  dir: null,
  health: null,
  wanted: true,
  revision: 1,
  stopMs: null,
  problem: null,
  ...more,
})

const ensure = (service: Service) => services.ensureService(spec, { name: service.name, service, environment: {} })

/** The pid, and the last argument of what runs. */
async function running(service: Service): Promise<{ pid: number; mark: string | undefined }> {
  let pid = 0
  await until(() => {
    const found = services.inspectService(spec.id, service)
    pid = found.is === 'up' && found.begunAtMs !== undefined ? found.pid : 0
    return pid !== 0
  })
  let mark: string | undefined
  await until(async () => {
    const words = (await bench.sh(spec, `tr '\\0' '\\n' < /proc/${pid}/cmdline`)).out.trimEnd().split('\n')
    mark = words.at(-1)
    return words[0] === 'sh' && words.length === 4
  })
  return { pid, mark }
}

test('what runs is replaced when its definition or its revision differs, and only then', async () => {
  await ensure(row('web', 'one'))
  const first = await running(row('web', 'one'))
  expect(first.mark).toBe('one')
  expect(services.isSettled(spec, row('web', 'one'), {})).toBe(true)
  await ensure(row('web', 'one'))
  expect(await running(row('web', 'one'))).toEqual(first)

  const other = row('web', 'two')
  expect([services.isCurrent(spec.id, other), services.isSettled(spec, other, {})]).toEqual([false, false])
  await ensure(other)
  const second = await running(other)
  expect([second.mark, second.pid === first.pid]).toEqual(['two', false])

  const restarted = row('web', 'two', { revision: 2 })
  await ensure(restarted)
  expect((await running(restarted)).pid).not.toBe(second.pid)
  expect(services.isSettled(spec, restarted, {})).toBe(true)
})

test('a variable of the sandbox is in the files at once and replaces nothing', async () => {
  await ensure(row('web', 'two', { revision: 2 }))
  const before = await running(row('web', 'two'))
  const settled = row('web', 'two', { revision: 2 })
  expect(services.isSettled(spec, settled, { COLOUR: 'green' })).toBe(false)
  await services.ensureService(spec, { name: 'web', service: settled, environment: { COLOUR: 'green' } })
  expect(services.isSettled(spec, settled, { COLOUR: 'green' })).toBe(true)
  expect(await running(settled)).toEqual(before)
})

test('the exit code of a stopped service survives a restart of its box', async () => {
  const stopped = row('web', 'two', { revision: 2, wanted: false, stopMs: 5_000 })
  await ensure(row('web', 'two', { revision: 2 }))
  await running(stopped)
  await ensure(stopped)
  const ended = { is: 'down', wanted: false, end: { code: 7 } }
  await until(() => services.inspectService(spec.id, stopped).is === 'down')
  expect(services.inspectService(spec.id, stopped)).toMatchObject(ended)
  await bench.boxes.stopBox(spec.id)
  await bench.boxes.ensureBox(spec)
  await until(() => services.inspectService(spec.id, stopped).is === 'down')
  expect(services.inspectService(spec.id, stopped)).toMatchObject(ended)
})

test('a service without a row is removed, and nothing is written for a box that is gone', async () => {
  await services.ensureService(spec, { name: 'web', service: undefined, environment: {} })
  expect(services.listDefined(spec.id)).toEqual([])
  await bench.boxes.removeBox(spec)
  await ensure(row('web', 'one'))
  expect(bench.boxes.listBoxes()).toEqual([])
})
