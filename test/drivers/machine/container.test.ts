import { existsSync, readdirSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findSupervised } from '../../../src/drivers/box/process.ts'
import type { ContainerStatus } from '../../../src/drivers/machine/driver.ts'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import type { ContainerSpec, MachineSpec } from '../../../src/model/app/machine-spec.ts'
import { type MachineBench, openMachineBench, waiting } from '../../support/machine-bench.ts'
import { until } from '../../support/until.ts'

let bench: MachineBench

beforeAll(async () => {
  bench = await openMachineBench()
})
afterAll(() => bench?.remove())

/** Ends with this code when it is told to stop. */
const stopsWith = (code: number) => onSignal('TERM', `exit ${code}`)
const onSignal = (signal: string, action: string) => `trap '${action}' ${signal}; echo up; ${forever}`
const forever = 'while :; do sleep 0.02; done'

function container(name: string, script: string, parts: Partial<ContainerSpec> = {}): ContainerSpec {
  const { layers, env, user, workingDir, files, restart, stop } = bench.newSpec()
  const argv = ['sh', '-c', script]
  const own = { name, argv, dependsOn: [], stopsUnhealthy: false }
  return { layers, env, user, workingDir, files, restart, stop, ...own, ...parts }
}

async function start(containers: ContainerSpec[], parts: Partial<MachineSpec> = {}): Promise<MachineSpec> {
  const spec = bench.newSpec({ containers, ...parts })
  await bench.machines.startMachine(spec)
  return spec
}

function statesOf(spec: MachineSpec): Record<string, ContainerStatus> {
  const process = bench.look(spec)
  return Object.fromEntries((process.is === 'up' ? (process.containers ?? []) : []).map((found) => [found.name, found]))
}

const untilStates = (spec: MachineSpec, states: Record<string, string>) =>
  until(() => Object.entries(states).every(([name, state]) => statesOf(spec)[name]?.state === state))

async function runIn(spec: MachineSpec, name: string, ...argv: [string, ...string[]]): Promise<string> {
  const { env } = spec.containers.find((found) => found.name === name)!
  const { out } = await bench.run({ ...spec, env, container: name } as MachineSpec, argv)
  return out
}

async function linesOf(spec: MachineSpec): Promise<string[]> {
  const lines = await bench.machines.readLog(spec.id, 1000)
  return lines.map(({ container, stream, text }) => `${container}: ${stream === 'platform' ? '* ' : ''}${text}`)
}

const untilLogged = (spec: MachineSpec, ...lines: string[]) =>
  until(async () => {
    const logged = await linesOf(spec)
    return lines.every((line) => logged.includes(line))
  })

test('containers have root filesystems, environments and processes of their own, and share loopback', async () => {
  const serve = `echo hello > /page; while :; do nc -l -p 7000 -e cat /page || nc -l -p 7000 < /page; done`
  const files = [{ path: '/etc/greeting', content: Buffer.from('good morning'), mode: 0o644 }]
  const spec = await start([
    container('web', serve, { env: { PATH: '/usr/bin:/bin', WHO: 'web' } }),
    container('client', waiting, { env: { PATH: '/usr/bin:/bin', WHO: 'client' }, files }),
  ])
  await untilStates(spec, { web: 'running', client: 'running' })
  await until(async () => (await runIn(spec, 'client', 'sh', '-c', 'nc 127.0.0.1 7000 < /dev/null')) === 'hello\n')
  expect(await runIn(spec, 'client', 'sh', '-c', 'echo $WHO; cat /etc/greeting; ls /page')).toBe('client\ngood morning')
  expect(await runIn(spec, 'web', 'sh', '-c', 'ls /page /etc/greeting')).toBe('/page\n')
  const processes = await bench.machines.listProcesses(spec.id)
  expect(new Set(processes.map((process) => process.container))).toEqual(new Set(['web', 'client']))
  expect(await runIn(spec, 'client', 'ps')).not.toContain('nc -l')
})

test('the log marks each line with its container, and no container can forge the mark of another', async () => {
  const spec = await start([
    container('a', `printf 'one\\n\\034b\\034forged\\nhalf'; echo problem >&2; ${forever}`),
    container('b', 'exit 3'),
  ])
  await untilLogged(spec, 'a: one', 'a: \x1cb\x1cforged', 'a: problem', 'b: * exited with code 3')
  await bench.machines.stopMachine(spec.id, spec.stop)
  await untilLogged(spec, 'a: half')
  expect(await linesOf(spec)).not.toContain('b: forged')
})

describe('dependencies', () => {
  test('decide about the order of the starts', async () => {
    const spec = await start([
      container('last', `echo last; ${waiting}`, { dependsOn: [{ name: 'server', condition: 'healthy' }] }),
      container('server', `echo server; ${waiting}`, {
        dependsOn: [{ name: 'setup', condition: 'exited_successfully' }],
      }),
      container('setup', 'echo setup', { dependsOn: [{ name: 'first', condition: 'started' }] }),
      container('first', `echo first; ${waiting}`),
    ])
    await untilStates(spec, { first: 'running', setup: 'stopped', server: 'running', last: 'pending' })
    bench.machines.reportHealth(spec.id, 'server', statesOf(spec).server!.run + 1, 'healthy')
    bench.machines.reportHealth(spec.id, 'server', statesOf(spec).server!.run, 'healthy')
    await untilStates(spec, { last: 'running' })
    expect(statesOf(spec)).toMatchObject({ server: { health: 'healthy' }, setup: { exitCode: 0 } })
  })

  test('that can no longer be fulfilled keep a container from starting, and the machine ends with the failure', async () => {
    const spec = await start([
      container('setup', 'exit 4'),
      container('server', 'echo never', { dependsOn: [{ name: 'setup', condition: 'exited_successfully' }] }),
      container('later', 'echo never', { dependsOn: [{ name: 'server', condition: 'started' }] }),
    ])
    await until(() => bench.look(spec).is === 'down')
    expect(bench.exits(spec)).toMatchObject([
      { exitCode: 4, container: 'setup', restarting: false },
      { exitCode: 4, requested: false, restarting: false },
    ])
    expect(bench.exits(spec)[1]).not.toHaveProperty('container')
    await untilLogged(spec, 'server: * is not started: the container setup ended before it was successful')
    expect((await linesOf(spec)).join()).not.toContain('never')
  })
})

describe('an exit', () => {
  test('is followed by a restart of that container alone, with a new root filesystem', async () => {
    const restart = { policy: 'on-failure' as const, maxRetries: 5 }
    const spec = await start([
      container('flaky', `ls /mark; touch /mark; ${stopsWith(7)}`, { restart }),
      container('steady', waiting),
    ])
    await untilStates(spec, { flaky: 'running', steady: 'running' })
    const steady = await runIn(spec, 'steady', 'sh', '-c', 'touch /kept; echo ok')
    expect(steady).toBe('ok\n')
    await until(async () => (await runIn(spec, 'flaky', 'ls', '/mark')) === '/mark\n')
    await runIn(spec, 'flaky', 'kill', '-TERM', '2')
    await until(() => statesOf(spec).flaky?.run === 2 && statesOf(spec).flaky?.state === 'running')
    expect(statesOf(spec)).toMatchObject({ flaky: { restarts: 1, exitCode: 7 }, steady: { run: 1, restarts: 0 } })
    expect(bench.exits(spec)).toMatchObject([{ container: 'flaky', exitCode: 7, restarting: true, restartSeconds: 1 }])
    expect(await runIn(spec, 'steady', 'ls', '/kept')).toBe('/kept\n')
    expect((await linesOf(spec)).filter((line) => line === 'flaky: /mark')).toEqual([])
  })

  test('of the last container ends the machine', async () => {
    const spec = await start([container('a', 'exit 0'), container('b', 'sleep 0.2; exit 0')])
    await until(() => bench.look(spec).is === 'down')
    expect(bench.exits(spec).map((exit) => [exit.container, exit.exitCode])).toEqual([
      ['a', 0],
      ['b', 0],
      [undefined, 0],
    ])
  })

  test('of a container that cannot be started says why in the log', async () => {
    const spec = await start([
      container('a', 'true', { user: 'nobody-here' }),
      container('b', '', { argv: ['missing'] }),
    ])
    await until(() => bench.look(spec).is === 'down')
    await untilLogged(spec, 'a: * there is no user nobody-here in the image', 'b: * exec: "missing": not found')
  })
})

test('an unhealthy container is stopped and started again by its restart policy', async () => {
  const restart = { policy: 'on-failure' as const, maxRetries: 5 }
  const spec = await start([container('web', stopsWith(0), { restart, stopsUnhealthy: true }), container('b', waiting)])
  await untilStates(spec, { web: 'running' })
  await until(async () => (await runIn(spec, 'web', 'echo', 'ready')) === 'ready\n')
  bench.machines.reportHealth(spec.id, 'web', 1, 'unhealthy')
  await until(() => statesOf(spec).web?.run === 2 && statesOf(spec).web?.state === 'running')
  expect(bench.exits(spec)).toMatchObject([{ container: 'web', restarting: true }])
})

describe('a stop', () => {
  test('ends dependents first, each with its own signal', async () => {
    const usr1 = { signal: 'SIGUSR1', timeoutMs: 20_000 }
    const spec = await start(
      [
        container('db', onSignal('USR1', 'echo db ends; exit 0'), { stop: usr1 }),
        container('web', onSignal('TERM', 'sleep 0.3; echo web ends; exit 0'), {
          dependsOn: [{ name: 'db', condition: 'started' }],
        }),
      ],
      { stop: { signal: 'SIGTERM', timeoutMs: 40_000 } },
    )
    await untilLogged(spec, 'db: up', 'web: up')
    await bench.machines.stopMachine(spec.id, spec.stop)
    const ends = (await linesOf(spec)).filter((line) => line.endsWith('ends'))
    expect(ends).toEqual(['web: web ends', 'db: db ends'])
    expect(bench.exits(spec).map((exit) => [exit.container, exit.requested])).toEqual([
      ['web', true],
      ['db', true],
      [undefined, true],
    ])
    expect(bench.look(spec).is).toBe('down')
  })

  test('kills a container that ignores its signal after its timeout', async () => {
    const spec = await start([container('deaf', onSignal('TERM', ''), { stop: { signal: 'SIGTERM', timeoutMs: 300 } })])
    await untilLogged(spec, 'deaf: up')
    await bench.machines.stopMachine(spec.id, { signal: 'SIGTERM', timeoutMs: 60_000 })
    expect(bench.exits(spec)[0]).toMatchObject({ container: 'deaf', exitCode: 137 })
  })

  test('gives a requested signal to all containers', async () => {
    const spec = await start([
      container('a', onSignal('HUP', 'echo hup; exit 0')),
      container('b', onSignal('HUP', 'echo hup; exit 0')),
    ])
    await untilLogged(spec, 'a: up', 'b: up')
    await bench.machines.stopMachine(spec.id, { signal: 'SIGHUP', timeoutMs: 20_000, isSignalRequested: true })
    await untilLogged(spec, 'a: hup', 'b: hup')
  })
})

test('a killed supervisor takes its containers along, and they are started again', async () => {
  const spec = await start([container('a', waiting), container('b', waiting)])
  await untilStates(spec, { a: 'running', b: 'running' })
  const before = findSupervised(machinePaths(bench.home, spec.id).service)!
  process.kill(before, 'SIGKILL')
  await until(() => {
    const now = findSupervised(machinePaths(bench.home, spec.id).service)
    return now !== undefined && now !== before && statesOf(spec).a?.state === 'running'
  })
  await untilStates(spec, { a: 'running', b: 'running' })
})

test('another version replaces the containers, and leaves nothing of those that it does not have', async () => {
  const spec = await start([container('old', waiting), container('both', 'echo first; sleep 1000')])
  await untilLogged(spec, 'both: first')
  const both = container('both', 'echo second; sleep 1000')
  await bench.machines.startMachine({ ...spec, instanceId: 'second', containers: [both] })
  await untilLogged(spec, 'both: second')
  const { directory } = machinePaths(bench.home, spec.id)
  expect(readdirSync(`${directory}/container`)).toEqual(['both'])
  await bench.machines.startMachine({ ...spec, instanceId: 'third', containers: [], argv: ['sh', '-c', waiting] })
  expect(readdirSync(`${directory}/container`)).toEqual([])
  await bench.machines.removeMachine(spec.id, spec.slot)
  expect(existsSync(directory)).toBe(false)
})

test('a suspended machine keeps its containers', async () => {
  const spec = await start([container('a', waiting), container('b', waiting)])
  await untilStates(spec, { a: 'running', b: 'running' })
  if (!(await bench.machines.freezeMachine(spec.id))) return expect(bench.look(spec)).toMatchObject({ is: 'up' })
  expect(bench.look(spec)).toMatchObject({ is: 'up', frozen: true })
  await bench.machines.startMachine(spec)
  await untilStates(spec, { a: 'running', b: 'running' })
  expect(statesOf(spec).a!.run).toBe(1)
})
