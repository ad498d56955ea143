import { existsSync, mkdirSync, statSync, truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import { type MachineBench, openMachineBench } from '../../support/machine-bench.ts'
import { until } from '../../support/until.ts'

let bench: MachineBench

beforeAll(async () => {
  bench = await openMachineBench()
})
afterAll(() => bench?.remove())

const linesOf = async (id: string) => (await bench.machines.readLog(id, 100)).map(({ stream, text }) => [stream, text])

test('the last output of a machine that is removed at once can still be read', async () => {
  const specs = await Promise.all(
    Array.from({ length: 4 }, () => bench.newMachine({ script: 'echo out; echo err >&2; exit 3' })),
  )
  for (const spec of specs) {
    await until(() => bench.exits(spec).length === 1)
    await bench.machines.removeMachine(spec.id, spec.slot)
    expect((await linesOf(spec.id)).sort()).toEqual([
      ['platform', 'destroyed'],
      ['platform', 'exited with code 3'],
      ['stderr', 'err'],
      ['stdout', 'out'],
    ])
    const last = (await bench.machines.readLogAfter(spec.id, 0, 100)).map(({ text }) => text)
    expect(last).toHaveLength(4)
  }
})

test('the platform can add lines to the log of a machine that is running, and of no other', async () => {
  const spec = await bench.newMachine()
  await until(async () => {
    bench.machines.writeLog(spec.id, 'a remark')
    return (await linesOf(spec.id)).some(([stream, text]) => stream === 'platform' && text === 'a remark')
  })
  bench.machines.writeLog('00000000000000', 'a remark')
  expect(await linesOf('00000000000000')).toEqual([])
})

test('a machine can be followed before its first start and after its removal', async () => {
  const spec = bench.newSpec({ script: 'echo hello; exit 0' })
  const heard: string[] = []
  const gone = new AbortController()
  const follow = async (lines: number) => {
    for await (const { text } of bench.machines.followLog(spec.id, lines, gone.signal)) heard.push(text)
  }
  const early = follow(10)
  await bench.machines.startMachine(spec)
  await until(() => heard.includes('hello'))
  await bench.machines.removeMachine(spec.id, spec.slot)
  heard.length = 0
  const late = follow(10)
  await until(() => heard.includes('hello') && heard.includes('destroyed'))
  gone.abort()
  await Promise.all([early, late])
})

test('kept logs are deleted when they are old, and the oldest when all together are too large', async () => {
  const keep = (id: string, megabytes: number, ageSeconds: number) => {
    const { keptLog } = machinePaths(bench.home, id)
    mkdirSync(`${keptLog}/stdout`, { recursive: true })
    writeFileSync(`${keptLog}/stdout/current`, '')
    truncateSync(`${keptLog}/stdout/current`, megabytes * 1024 ** 2)
    const at = Date.now() / 1000 - ageSeconds
    utimesSync(keptLog, at, at)
    return keptLog
  }
  const [fresh, large, larger, old] = [
    keep('aaaaaaaaaaaaaa', 1, 10),
    keep('bbbbbbbbbbbbbb', 200, 60),
    keep('cccccccccccccc', 200, 120),
    keep('dddddddddddddd', 1, 7200),
  ]
  await bench.machines.trimKeptLogs()
  expect([fresh, large, larger, old].map((directory) => existsSync(directory))).toEqual([true, true, false, false])
  expect(statSync(`${bench.home.path}/machine-log`).mode & 0o777).toBe(0o700)
})
