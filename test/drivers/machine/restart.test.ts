import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { killFrozenProcesses } from '../../../src/drivers/host/cgroup-freezer.ts'
import { findProcess, killProcess, listProcesses } from '../../../src/drivers/host/process-list.ts'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import { type MachineBench, openMachineBench, waiting } from '../../support/machine-bench.ts'
import { isRunning } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const hasGroups = cgroupDriver().cgroupsAvailable()
let bench: MachineBench

beforeAll(async () => {
  bench = await openMachineBench()
})
afterAll(() => bench?.remove())

const parentOf = (pid: number) => findProcess(pid)!.parent

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}

describe('the restart policy', () => {
  test('restarts a failed program with growing delays up to the limit, and then gives up', async () => {
    const spec = bench.newSpec({ script: 'echo life; exit 1', restart: { policy: 'on-failure', maxRetries: 2 } })
    const changes: string[] = []
    const stop = bench.machines.onChange((id) => changes.push(id))
    await bench.machines.startMachine(spec)
    await until(() => bench.look(spec).is === 'down')
    stop()
    expect(
      bench.exits(spec).map(({ number, restarting, restartSeconds }) => [number, restarting, restartSeconds]),
    ).toEqual([
      [1, true, 1],
      [2, true, 2],
      [3, false, 0],
    ])
    expect(changes).toContain(spec.id)
    const [first, second, third] = bench.exits(spec).map(({ at }) => at)
    expect(second! - first!).toBeGreaterThanOrEqual(900)
    expect(third! - second!).toBeGreaterThanOrEqual(1900)
    await until(async () => (await bench.printed(spec)).match(/^life$/gm)?.length === 3)
  })

  test('does not restart a program that exited with 0, unless the policy is always', async () => {
    const onFailure = await bench.newMachine({ script: 'exit 0', restart: { policy: 'on-failure', maxRetries: 5 } })
    const always = await bench.newMachine({ script: 'exit 0', restart: { policy: 'always', maxRetries: 0 } })
    await until(() => bench.look(onFailure).is === 'down')
    expect(bench.exits(onFailure)).toMatchObject([{ exitCode: 0, restarting: false }])
    await until(() => bench.exits(always).length > 1)
    expect(bench.exits(always)[0]).toMatchObject({ exitCode: 0, restarting: true })
  })

  test('ends with a stop during the delay before a restart, and starts over with a start', async () => {
    const spec = await bench.newMachine({ script: 'exit 1', restart: { policy: 'always', maxRetries: 0 } })
    await until(() => bench.exits(spec).length >= 3)
    await until(() => bench.look(spec).is === 'waiting')
    await bench.machines.stopMachine(spec.id, spec.stop)
    const count = bench.exits(spec).length
    expect(bench.look(spec).is).toBe('down')
    await bench.machines.startMachine(spec)
    await until(() => bench.exits(spec).length > count)
  })

  test('counts a signal as a failure and records its number', async () => {
    const spec = await bench.newMachine({ script: waiting, restart: { policy: 'on-failure', maxRetries: 3 } })
    const pid = await bench.pidOf(spec)
    expect(await bench.machines.signalMachine(spec.id, 'KILL')).toBe(true)
    await until(() => bench.exits(spec).length === 1)
    expect(bench.exits(spec)).toMatchObject([{ exitCode: 137, signal: 9, restarting: true, requested: false }])
    expect(await bench.pidOf(spec)).not.toBe(pid)
  })
})

describe('supervision', () => {
  const always = { policy: 'always', maxRetries: 0 } as const

  test.each([
    ['the process that reaps orphans', (pid: number) => parentOf(pid)],
    ['bwrap', (pid: number) => parentOf(parentOf(pid))],
    ['the process that s6 supervises', (pid: number) => parentOf(parentOf(parentOf(pid)))],
    ['s6-supervise', (pid: number) => parentOf(parentOf(parentOf(parentOf(pid))))],
  ])('restarts the machine when %s is killed', async (_, find) => {
    const spec = await bench.newMachine({ restart: always })
    const pid = await bench.pidOf(spec)
    killProcess(find(pid), 'SIGKILL')
    await until(() => !isRunning(pid))
    expect(await bench.pidOf(spec)).not.toBe(pid)
    await bench.machines.removeMachine(spec.id, spec.slot)
  })

  test('does not take a process that outlives the program for the program', async () => {
    const spec = await bench.newMachine({ script: 'sleep 100 & wait', restart: always })
    const program = await bench.pidOf(spec)
    const first = parentOf(program)
    const childrenOf = (pid: number) => listProcesses().filter(({ parent }) => parent === pid)
    await until(() => childrenOf(program).length === 1)
    killProcess(first, 'SIGSTOP')
    killProcess(program, 'SIGKILL')
    await until(() => childrenOf(first).some(({ name }) => name === 'sleep'))
    expect(bench.look(spec).is).toBe('waiting')
    killProcess(first, 'SIGCONT')
    await until(() => bench.exits(spec).length === 1)
    expect(await bench.pidOf(spec)).not.toBe(program)
    await bench.machines.removeMachine(spec.id, spec.slot)
  })

  test('restarts killed loggers', async () => {
    const spec = await bench.newMachine({
      script: 'trap "echo out; echo err >&2" USR1; echo ready; while :; do sleep 0.02; done',
    })
    await bench.untilPrinted(spec, 'ready')
    const { log } = machinePaths(bench.home, spec.id)
    const loggers = () =>
      listProcesses().filter(({ pid, name }) => name === 's6-log' && commandOf(pid).includes(`${log}/`))
    await until(() => loggers().length === 2)
    const before = loggers().map(({ pid }) => pid)
    for (const pid of before) killProcess(pid, 'SIGKILL')
    await until(() => loggers().length === 2 && loggers().every(({ pid }) => !before.includes(pid)))
    await bench.machines.signalMachine(spec.id, 'USR1')
    await bench.untilPrinted(spec, 'out')
    await bench.untilPrinted(spec, 'err')
  })

  test('restarts running machines after a reboot, but not stopped or frozen ones', async () => {
    const [up, stopped] = [await bench.newMachine({ restart: always }), await bench.newMachine({ restart: always })]
    const frozen = hasGroups ? await bench.newMachine({ restart: always }) : undefined
    await bench.machines.stopMachine(stopped.id, stopped.stop)
    if (frozen) await bench.machines.freezeMachine(frozen.id)
    await killFrozenProcesses(bench.home)
    await bench.supervisor.stopTree({ timeoutSeconds: 30 })
    expect(bench.look(up)).toMatchObject({ is: 'waiting', exits: [{ requested: true, restarting: true }] })
    await bench.supervisor.ensureTree()
    await bench.pidOf(up)
    expect(bench.look(stopped).is).toBe('down')
    if (frozen) expect(bench.look(frozen).is).toBe('down')
  })
})
