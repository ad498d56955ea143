import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import {
  findWorkingDirectory,
  isStopped,
  killProcess,
  listProcesses,
  readEnvironment,
} from '../../../src/drivers/host/process-list.ts'
import type { ServiceSpec } from '../../../src/drivers/s6/driver.ts'
import { parseStatusFile, parseStatusLine, readStatus, statusFields } from '../../../src/drivers/s6/status.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { waitUntil } from '../../../src/model/poll.ts'
import {
  firstLine,
  isRunning,
  processesBelow,
  removeTemporaryHome,
  startProgram,
  temporaryDirectory,
} from '../../support/temporary-home.ts'

const directories: string[] = []

function newDirectories() {
  const directory = temporaryDirectory()
  directories.push(directory)
  return { directory, treeDirectory: `${directory}/tree`, logDirectory: `${directory}/log` }
}

const place = newDirectories()
const supervisor = s6Supervisor(place)
const sleeper: ServiceSpec = { command: ['sleep', '1000'] }

beforeAll(() => supervisor.ensureTree())

afterAll(async () => {
  for (const directory of directories) await removeTemporaryHome(directory)
})

async function pidOf(name: string, from = supervisor): Promise<number> {
  let pid = 0
  const up = await waitUntil(async () => {
    const state = await from.inspectService(name)
    if (state.is === 'up') pid = state.pid
    return state.is === 'up'
  }, 45)
  if (!up) throw new Error(`${name} did not come up: ${from.readLog(name, 10).join('\n')}`)
  return pid
}

function eventually(holds: () => boolean | Promise<boolean>): Promise<boolean> {
  return waitUntil(holds, 45)
}

test('starts a service and reports its process', async () => {
  await supervisor.ensureService('plain', sleeper)
  const pid = await pidOf('plain')
  const state = await supervisor.inspectService('plain')
  if (state.is !== 'up') throw new Error('not up')
  expect(state).toMatchObject({ is: 'up', pid, wanted: true })
  expect(Math.abs(Number(state.since / 1000n) - Date.now())).toBeLessThan(60_000)
  expect(isRunning(pid)).toBe(true)
  expect(supervisor.listServices()).toContain('plain')
})

test('does not restart a service whose spec is unchanged', async () => {
  await supervisor.ensureService('same', sleeper)
  const pid = await pidOf('same')
  await supervisor.ensureService('same', { ...sleeper })
  expect(await pidOf('same')).toBe(pid)
})

test('restarts a service whose spec has changed', async () => {
  await supervisor.ensureService('changed', sleeper)
  const pid = await pidOf('changed')
  await supervisor.ensureService('changed', { command: ['sleep', '2000'] })
  const next = await pidOf('changed')
  expect(isRunning(pid)).toBe(false)
  expect(await eventually(() => readFileSync(`/proc/${next}/cmdline`, 'utf8') === 'sleep\x002000\0')).toBe(true)
})

test('restarts a service whose new definition was written by a process that then died', async () => {
  await supervisor.ensureService('interrupted', sleeper)
  const pid = await pidOf('interrupted')
  writeFileSync(`${place.treeDirectory}/interrupted/changed`, '')
  await supervisor.ensureService('interrupted', sleeper)
  expect(await pidOf('interrupted')).not.toBe(pid)
  await supervisor.ensureService('interrupted', sleeper)
  expect(existsSync(`${place.treeDirectory}/interrupted/changed`)).toBe(false)
})

test('restarts a crashed service', async () => {
  await supervisor.ensureService('crash', sleeper)
  const pid = await pidOf('crash')
  process.kill(pid, 'SIGKILL')
  expect(
    await eventually(async () => {
      const state = await supervisor.inspectService('crash')
      return state.is === 'up' && state.pid !== pid
    }),
  ).toBe(true)
})

test('kills the children of a crashed service before it starts again', async () => {
  const script = 'sleep 1000 & setsid sleep 1000 & echo $!; wait'
  await supervisor.ensureService('children', { command: ['/bin/sh', '-c', script] })
  const pid = await pidOf('children')
  const mark = `BERTH_SERVICE=${place.treeDirectory}/children`
  const living = () => processesBelow(place.directory).filter((found) => readEnvironment(found.pid).includes(mark))
  expect(await eventually(() => living().length === 3)).toBe(true)
  const children = living().filter((found) => found.pid !== pid)
  process.kill(pid, 'SIGKILL')
  expect(await eventually(() => children.every((child) => !isRunning(child.pid)))).toBe(true)
  expect(await eventually(() => living().length === 3)).toBe(true)
})

test('keeps one process of a service when s6-supervise is killed', async () => {
  await supervisor.ensureService('orphan', sleeper)
  const pid = await pidOf('orphan')
  const watcher = Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ')[1])
  process.kill(watcher, 'SIGKILL')
  expect(await eventually(async () => !isRunning(pid) && (await supervisor.inspectService('orphan')).is === 'up')).toBe(
    true,
  )
})

function supervisorOf(directory: string): number {
  // Processes of other tests may end while they are inspected.
  const watches = ({ pid }: { pid: number }) => findWorkingDirectory(pid) === directory
  return listProcesses().find((found) => /^s6-s/.test(found.name) && watches(found))!.pid
}

test('continues a service and its logger that were stopped with SIGSTOP', async () => {
  await supervisor.ensureService('still', sleeper)
  const both = [await pidOf('still')]
  await eventually(async () => {
    const logger = await readStatus(`${place.treeDirectory}/still/log`)
    if (logger?.is === 'up') both.push(logger.pid)
    return both.length === 2
  })
  for (const pid of both) process.kill(pid, 'SIGSTOP')
  expect(await eventually(() => both.every(isStopped))).toBe(true)
  await supervisor.ensureService('still', sleeper)
  expect(await eventually(() => !both.some(isStopped))).toBe(true)
})

test('restarts a service that ended while its supervisor was stopped with SIGSTOP', async () => {
  await supervisor.ensureService('unnoticed', sleeper)
  const pid = await pidOf('unnoticed')
  process.kill(supervisorOf(`${place.treeDirectory}/unnoticed`), 'SIGSTOP')
  process.kill(pid, 'SIGKILL')
  expect(await eventually(() => !isRunning(pid))).toBe(true)
  await supervisor.ensureService('unnoticed', sleeper)
  expect(await eventually(async () => (await pidOf('unnoticed')) !== pid)).toBe(true)
})

test('removes a service whose supervisor is stopped with SIGSTOP', async () => {
  await supervisor.ensureService('deaf', { ...sleeper, stopTimeoutSeconds: 1 })
  const pid = await pidOf('deaf')
  const watcher = supervisorOf(`${place.treeDirectory}/deaf`)
  process.kill(watcher, 'SIGSTOP')
  await supervisor.removeService('deaf')
  expect([pid, watcher].some(isRunning)).toBe(false)
  expect(await supervisor.inspectService('deaf')).toEqual({ is: 'absent' })
})

test('starts a new service while s6-svscan is stopped with SIGSTOP', async () => {
  process.kill(supervisorOf(place.treeDirectory), 'SIGSTOP')
  await supervisor.ensureService('new', sleeper)
  expect(isRunning(await pidOf('new'))).toBe(true)
})

test('creates a service again whose log directory was removed', async () => {
  await supervisor.ensureService('half', { command: ['sh', '-c', 'echo said; exec sleep 1000'] })
  const pid = await pidOf('half')
  const logger = supervisorOf(`${place.treeDirectory}/half/log`)
  rmSync(`${place.treeDirectory}/half/log`, { recursive: true })
  await supervisor.ensureService('half', { command: ['sh', '-c', 'echo said; exec sleep 1000'] })
  expect(isRunning(await pidOf('half'))).toBe(true)
  expect(await eventually(() => ![pid, logger].some(isRunning))).toBe(true)
  expect(await eventually(() => supervisor.readLog('half', 1)[0]?.endsWith('said') ?? false)).toBe(true)
})

test('keeps a stopped service down until it is started again', async () => {
  await supervisor.ensureService('sticky', sleeper)
  const pid = await pidOf('sticky')
  await supervisor.stopService('sticky')
  expect(isRunning(pid)).toBe(false)
  expect(await supervisor.inspectService('sticky')).toMatchObject({ is: 'down', wanted: false, signal: 'SIGTERM' })
  await supervisor.startService('sticky')
  expect(await pidOf('sticky')).not.toBe(pid)
})

test('starts a stopped service when it is ensured', async () => {
  await supervisor.ensureService('ensured', sleeper)
  await supervisor.stopService('ensured')
  await supervisor.ensureService('ensured', sleeper)
  expect(await pidOf('ensured')).toBeGreaterThan(0)
})

test('kills a service that ignores its stop signal', async () => {
  const script = 'trap "" TERM; echo ready; while :; do sleep 1; done'
  await supervisor.ensureService('stubborn', { command: ['/bin/sh', '-c', script] })
  const pid = await pidOf('stubborn')
  expect(await eventually(() => supervisor.readLog('stubborn', 1).length === 1)).toBe(true)
  await supervisor.stopService('stubborn', { timeoutSeconds: 0.2 })
  expect(isRunning(pid)).toBe(false)
  expect(await supervisor.inspectService('stubborn')).toMatchObject({ is: 'down', wanted: false, signal: 'SIGKILL' })
})

test('stops a service with its stop signal and keeps the exit code', async () => {
  const script = 'trap "exit 7" INT; echo ready; while :; do sleep 0.02; done'
  await supervisor.ensureService('polite', { command: ['/bin/sh', '-c', script], stopSignal: 'SIGINT' })
  expect(await eventually(() => supervisor.readLog('polite', 1).length === 1)).toBe(true)
  await supervisor.stopService('polite')
  expect(await supervisor.inspectService('polite')).toMatchObject({ is: 'down', exitCode: 7 })
})

test('reads the same state from the status file as s6-svstat', async () => {
  const directory = `${place.treeDirectory}/compared`
  const expectSame = async () => {
    const { stdout } = await run('s6-svstat', ['-o', statusFields, directory])
    expect(parseStatusFile(readFileSync(`${directory}/supervise/status`))).toEqual(parseStatusLine(stdout))
  }
  await supervisor.ensureService('compared', {
    command: ['/bin/sh', '-c', 'trap "exit 7" HUP; while :; do sleep 0.02; done'],
  })
  await pidOf('compared')
  await expectSame()
  await supervisor.stopService('compared')
  await expectSame()
  await supervisor.ensureService('compared', { command: ['/bin/sh', '-c', 'exit 7'], once: true })
  expect(await eventually(async () => (await supervisor.inspectService('compared')).is === 'down')).toBe(true)
  await expectSame()
})

test('sends signals to a service', async () => {
  const script = 'trap "echo again" HUP; echo ready; while :; do sleep 0.02; done'
  await supervisor.ensureService('signalled', { command: ['/bin/sh', '-c', script] })
  expect(await eventually(() => supervisor.readLog('signalled', 1).length === 1)).toBe(true)
  await supervisor.signalService('signalled', 'SIGHUP')
  expect(await eventually(() => supervisor.readLog('signalled', 1)[0]?.endsWith('  again') ?? false)).toBe(true)
})

test('passes arguments and variables unchanged, and no other variables', async () => {
  const odd = ['two words', `it's "quoted"`, '$HOME `id` $(id)', 'back\\slash', '', '*', 'line\nbreak', 'ü~!#;&|<>']
  const file = `${place.directory}/seen.json`
  const script = 'require("fs").writeFileSync(process.argv[1], JSON.stringify([process.argv.slice(2), process.env]))'
  await supervisor.ensureService('verbatim', {
    command: [process.execPath, '-e', `${script}; setInterval(() => {}, 1e6)`, '--', file, ...odd],
    env: { ODD: odd.join(' ') },
  })
  expect(await eventually(() => existsSync(file) && readFileSync(file, 'utf8').endsWith(']'))).toBe(true)
  const [words, env] = JSON.parse(readFileSync(file, 'utf8'))
  expect(words).toEqual(odd)
  expect(env.ODD).toBe(odd.join(' '))
  expect(Object.keys(env).sort()).toEqual(['BERTH_SERVICE', 'LANG', 'ODD', 'PATH', 'TZ'])
})

test.runIf(isRoot())('runs a service and the commands before it as its user', async () => {
  await supervisor.ensureService('user', {
    command: ['/bin/sh', '-c', 'id -u; id -G; pwd; sleep 1000'],
    beforeStart: [['/bin/sh', '-c', 'echo before $(id -u)']],
    uid: 300123,
    gid: 300124,
    cwd: '/tmp',
  })
  expect(await eventually(() => supervisor.readLog('user', 9).length === 4)).toBe(true)
  const lines = supervisor.readLog('user', 9).map((line) => line.split('  ')[1])
  expect(lines).toEqual(['before 300123', '300123', '300124', '/tmp'])
})

test('removes a service with its processes and files, and can be repeated', async () => {
  await supervisor.ensureService('gone', { command: ['/bin/sh', '-c', 'setsid sleep 1000 & sleep 1000'] })
  await pidOf('gone')
  await supervisor.removeService('gone')
  await supervisor.removeService('gone')
  expect(await supervisor.inspectService('gone')).toEqual({ is: 'absent' })
  expect(readdirSync(place.treeDirectory).filter((entry) => entry.includes('gone'))).toEqual([])
  expect(existsSync(`${place.logDirectory}/gone`)).toBe(false)
  const mark = `BERTH_SERVICE=${place.treeDirectory}/gone`
  expect(processesBelow(place.directory).filter((found) => readEnvironment(found.pid).includes(mark))).toEqual([])
  await supervisor.ensureService('gone', sleeper)
  expect(await pidOf('gone')).toBeGreaterThan(0)
})

test('rejects names that could leave the directory', async () => {
  for (const name of ['', '../x', '.hidden', 'UPPER', 'a/b', 'a b', 'x\n'])
    await expect(supervisor.ensureService(name, sleeper)).rejects.toThrow('not a service name')
})

test('ensures one service from several callers at once', async () => {
  await Promise.all(Array.from({ length: 5 }, () => supervisor.ensureService('crowd', sleeper)))
  await pidOf('crowd')
  expect(readdirSync(place.treeDirectory).filter((entry) => entry.includes('crowd'))).toEqual(['crowd'])
})

test('keeps a service running when the process that started it is killed', async () => {
  const { treeDirectory, logDirectory, directory } = newDirectories()
  const starter = startProgram(`
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    const supervisor = s6Supervisor(${JSON.stringify({ treeDirectory, logDirectory })})
    await supervisor.ensureTree()
    await supervisor.ensureService('survivor', { command: ['sleep', '1000'] })
    let state = await supervisor.inspectService('survivor')
    while (state.is !== 'up') state = await supervisor.inspectService('survivor')
    console.log(state.pid)
    setInterval(() => {}, 1e6)
  `)
  const pid = Number(await firstLine(starter))
  const ended = new Promise((resolve) => starter.once('exit', resolve))
  starter.kill('SIGKILL')
  await ended
  const adopted = s6Supervisor({ treeDirectory, logDirectory })
  await adopted.ensureTree()
  await adopted.ensureService('survivor', sleeper)
  expect(await pidOf('survivor', adopted)).toBe(pid)
  await adopted.stopTree()
  expect(processesBelow(directory)).toEqual([])
})

test('starts one tree when several processes start it at once', async () => {
  const { treeDirectory, logDirectory, directory } = newDirectories()
  const starters = Array.from({ length: 4 }, () =>
    startProgram(`
      import { s6Supervisor } from 'drivers/s6/supervisor.ts'
      const supervisor = s6Supervisor(${JSON.stringify({ treeDirectory, logDirectory })})
      await supervisor.ensureTree()
      await supervisor.ensureService('only', { command: ['sleep', '1000'] })
      console.log(supervisor.inspectTree().pid)
    `),
  )
  const pids = await Promise.all(starters.map(firstLine))
  expect(new Set(pids).size).toBe(1)
  expect(await eventually(() => processesBelow(directory).filter((p) => p.name === 's6-svscan').length === 1)).toBe(
    true,
  )
})

test('starts every service but the stopped ones after a reboot', async () => {
  const { treeDirectory, logDirectory, directory } = newDirectories()
  const tree = s6Supervisor({ treeDirectory, logDirectory })
  await tree.ensureTree()
  for (const name of ['first', 'second', 'stopped']) await tree.ensureService(name, sleeper)
  await tree.stopService('stopped')
  const before = [await pidOf('first', tree), await pidOf('second', tree)]
  killAll(directory)
  expect(await eventually(() => processesBelow(directory).length === 0)).toBe(true)
  expect(tree.inspectTree()).toEqual({ is: 'down' })
  expect(await tree.inspectService('first')).toMatchObject({ is: 'down', wanted: true })

  await tree.ensureTree()
  for (const name of ['first', 'second']) expect(before).not.toContain(await pidOf(name, tree))
  expect(await tree.inspectService('stopped')).toMatchObject({ is: 'down', wanted: false })
})

// s6-svscan is killed first, so that it restarts nothing.
function killAll(directory: string) {
  const order = (name: string) => ['s6-svscan', 's6-supervise'].indexOf(name) >>> 0
  for (const { pid } of processesBelow(directory).sort((a, b) => order(a.name) - order(b.name)))
    killProcess(pid, 'SIGKILL')
}

test('says how s6-svscan ended when the tree cannot be started', async () => {
  const { treeDirectory, logDirectory, directory } = newDirectories()
  mkdirSync(`${treeDirectory}/.s6-svscan/lock`, { recursive: true })
  const tree = s6Supervisor({ treeDirectory, logDirectory })
  await expect(tree.ensureTree()).rejects.toThrow(
    /^start the supervision tree: not running after .*s6-svscan: fatal: .*s6-svscan exited with 111$/s,
  )
  expect(processesBelow(directory)).toEqual([])
})

test('says which signal ended s6-svscan when a service is to be started', async () => {
  const { treeDirectory, logDirectory } = newDirectories()
  const tree = s6Supervisor({ treeDirectory, logDirectory })
  await tree.ensureTree()
  const state = tree.inspectTree()
  if (state.is === 'up') process.kill(state.pid, 'SIGSEGV')
  const log = `${logDirectory}/.tree.log`
  expect(await eventually(() => readFileSync(log, 'utf8').includes('SIGSEGV'))).toBe(true)
  await expect(tree.ensureService('late', sleeper)).rejects.toMatchObject({
    message: 'start service late: the supervision tree is not running',
    cause: {
      message: expect.stringMatching(/^s6-svscan is not running; .* s6-svscan was ended by SIGSEGV$/),
    },
  })
})

test('keeps services running when only s6-svscan is killed, and can still stop them', async () => {
  const { treeDirectory, logDirectory, directory } = newDirectories()
  const tree = s6Supervisor({ treeDirectory, logDirectory })
  await tree.ensureTree()
  await tree.ensureService('kept', sleeper)
  await tree.ensureService('removed', sleeper)
  const pid = await pidOf('kept', tree)
  const state = tree.inspectTree()
  if (state.is === 'up') process.kill(state.pid, 'SIGKILL')
  expect(await eventually(() => tree.inspectTree().is === 'down')).toBe(true)
  await tree.ensureTree()
  await tree.ensureService('kept', sleeper)
  expect(await pidOf('kept', tree)).toBe(pid)
  await tree.removeService('removed')
  expect(await tree.inspectService('removed')).toEqual({ is: 'absent' })
  await tree.stopTree()
  expect(processesBelow(directory)).toEqual([])
})

test('leaves no process behind when the tree stops, and starts the services again with the next tree', async () => {
  const { treeDirectory, logDirectory, directory } = newDirectories()
  const tree = s6Supervisor({ treeDirectory, logDirectory })
  await tree.ensureTree()
  await tree.ensureService('one', { command: ['/bin/sh', '-c', 'setsid sleep 1000 & sleep 1000'] })
  await tree.ensureService('deaf', {
    command: ['/bin/sh', '-c', 'trap "" TERM; while :; do sleep 1; done'],
    stopTimeoutSeconds: 2,
  })
  await pidOf('one', tree)
  await pidOf('deaf', tree)
  await tree.stopTree({ timeoutSeconds: 0.5 })
  expect(processesBelow(directory)).toEqual([])
  await tree.stopTree()
  await tree.ensureTree()
  expect(await pidOf('one', tree)).toBeGreaterThan(0)
})

test('reads the last lines of a log across rotated files', async () => {
  await supervisor.ensureService('talkative', {
    command: ['/bin/sh', '-c', 'seq -f "%.0f ----------------------------------------" 1 60000; sleep 1000'],
  })
  const numbers = (lines: number) => supervisor.readLog('talkative', lines).map((line) => line.split(/ +/)[2])
  expect(await eventually(() => numbers(1)[0] === '60000')).toBe(true)
  expect(readdirSync(`${place.logDirectory}/talkative`).some((file) => file.startsWith('@'))).toBe(true)
  expect(numbers(3)).toEqual(['59998', '59999', '60000'])
  const many = numbers(30000)
  expect([many.length, many[0], many.at(-1)]).toEqual([30000, '30001', '60000'])
  expect(supervisor.readLog('unknown', 5)).toEqual([])
})
