import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { getPriority } from 'node:os'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { killProcess, listProcesses, readEnvironment } from '../../../src/drivers/host/process-list.ts'
import type { JobState } from '../../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import { ensureFirstDefinition } from '../../../src/drivers/s6/service-directory.ts'
import { renderDefinition } from '../../../src/drivers/s6/service-script.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import {
  firstLine,
  isRunning,
  processesBelow,
  removeTemporaryHome,
  startProgram,
  temporaryDirectory,
} from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const directories: string[] = []

function newSupervisor() {
  const directory = temporaryDirectory()
  directories.push(directory)
  const place = { treeDirectory: `${directory}/tree`, logDirectory: `${directory}/log` }
  const supervisor = s6Supervisor(place)
  return { directory, place, supervisor, jobs: jobDriver(supervisor) }
}

const { directory, place, supervisor, jobs } = newSupervisor()

beforeAll(() => supervisor.ensureTree())

afterAll(async () => {
  for (const used of directories) await removeTemporaryHome(used)
})

function shell(script: string) {
  return { command: ['/bin/sh', '-c', script, 'job', directory] }
}

async function untilEnded(name: string, from = jobs) {
  let ended: (JobState & { is: 'ended' }) | undefined
  await until(async () => {
    const state = await from.inspectJob(name)
    if (state.is === 'ended') ended = state
    return state.is === 'ended'
  })
  return ended!
}

function markedProcesses(name: string, tree = place.treeDirectory) {
  return listProcesses().filter((found) => readEnvironment(found.pid).includes(`BERTH_SERVICE=${tree}/${name}`))
}

test('runs a job and keeps its exit code and log', async () => {
  expect(await jobs.inspectJob('plain')).toEqual({ is: 'absent' })
  await jobs.ensureJob('plain', shell('echo first; echo last >&2; exit 7'))
  const ended = await untilEnded('plain')
  expect(ended).toMatchObject({ is: 'ended', exitCode: 7 })
  expect(ended.log.map((line) => line.split('  ')[1])).toEqual(['first', 'last'])
  expect(ended).not.toHaveProperty('signal')
})

test('keeps the signal that ended a job', async () => {
  await jobs.ensureJob('signalled', shell('kill -9 $$'))
  expect(await untilEnded('signalled')).toMatchObject({ is: 'ended', signal: 'SIGKILL' })
})

test('does not run a job again while it runs or after it has ended, even with another spec', async () => {
  const script = 'echo line >> "$1/twice"; while [ ! -e "$1/go" ]; do sleep 0.02; done'
  await jobs.ensureJob('twice', shell(script))
  await until(() => existsSync(`${directory}/twice`))
  const running = await jobs.inspectJob('twice')
  await jobs.ensureJob('twice', shell(script))
  await jobs.ensureJob('twice', shell('exit 9'))
  expect(await jobs.inspectJob('twice')).toEqual(running)
  writeFileSync(`${directory}/go`, '')
  expect(await untilEnded('twice')).toMatchObject({ exitCode: 0 })
  await Promise.all(Array.from({ length: 3 }, () => jobs.ensureJob('twice', shell(script))))
  expect(await jobs.inspectJob('twice')).toMatchObject({ is: 'ended', exitCode: 0 })
  expect(readFileSync(`${directory}/twice`, 'utf8')).toBe('line\n')
})

test('runs one job for concurrent requests', async () => {
  const ask = () => jobs.ensureJob('crowd', shell('echo line >> "$1/crowd"'))
  await Promise.all(Array.from({ length: 5 }, ask))
  await untilEnded('crowd')
  expect(readFileSync(`${directory}/crowd`, 'utf8')).toBe('line\n')
})

test('runs a job as its user and with its niceness', async () => {
  await jobs.ensureJob('user', { ...shell('id -u; nice'), niceness: 7, ...(isRoot() && { uid: 300_123 }) })
  const { log } = await untilEnded('user')
  expect(log.map((line) => line.split('  ')[1])).toEqual([
    String(isRoot() ? 300_123 : process.getuid!()),
    String(7 + getPriority()),
  ])
})

test('starts a job whose creator was killed before s6 knew of it', async () => {
  const spec = { ...shell('echo late; exit 3'), once: true }
  mkdirSync(`${place.logDirectory}/unknown`)
  ensureFirstDefinition(place, 'unknown', renderDefinition(place, 'unknown', spec))
  expect(await untilEnded('unknown')).toMatchObject({ exitCode: 3 })
})

test('removes a job with its children, and can be repeated', async () => {
  await jobs.ensureJob('gone', shell('trap "" TERM; sleep 1000 & setsid sleep 1000 & wait'))
  await until(() => markedProcesses('gone').length === 3)
  const pids = markedProcesses('gone').map((found) => found.pid)
  await jobs.removeJob('gone')
  await jobs.removeJob('gone')
  expect(pids.filter(isRunning)).toEqual([])
  expect(await jobs.inspectJob('gone')).toEqual({ is: 'absent' })
  expect(existsSync(`${place.logDirectory}/gone`)).toBe(false)
  expect(readdirSync(place.treeDirectory).filter((entry) => entry.includes('gone'))).toEqual([])
  await jobs.ensureJob('gone', shell('exit 4'))
  expect(await untilEnded('gone')).toMatchObject({ exitCode: 4 })
})

test('keeps running when the process that started it is killed', async () => {
  const own = newSupervisor()
  const starter = startProgram(`
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    import { jobDriver } from 'drivers/s6/job.ts'
    const supervisor = s6Supervisor(${JSON.stringify(own.place)})
    await supervisor.ensureTree()
    const script = 'while [ ! -e "$1/go" ]; do sleep 0.02; done; exit 5'
    const jobs = jobDriver(supervisor)
    await jobs.ensureJob('survivor', { command: ['/bin/sh', '-c', script, 'job', ${JSON.stringify(own.directory)}] })
    let state = await jobs.inspectJob('survivor')
    while (state.pid === undefined) state = await jobs.inspectJob('survivor')
    console.log(state.pid)
    setInterval(() => {}, 1e6)
  `)
  const pid = Number(await firstLine(starter))
  const ended = new Promise((resolve) => starter.once('exit', resolve))
  starter.kill('SIGKILL')
  await ended
  expect(await own.jobs.inspectJob('survivor')).toMatchObject({ is: 'running', pid })
  writeFileSync(`${own.directory}/go`, '')
  expect(await untilEnded('survivor', own.jobs)).toMatchObject({ exitCode: 5 })
})

test.each(['stopped', 'killed'])('after the tree was %s, only jobs that had not ended start again', async (how) => {
  const own = newSupervisor()
  const script = 'echo line >> "$1/$2"; [ ! -e "$1/wait" ] || sleep 1000; exit 6'
  const job = (name: string) => ({ command: ['/bin/sh', '-c', script, 'job', own.directory, name] })
  const lines = (name: string) => readFileSync(`${own.directory}/${name}`, 'utf8').trim().split('\n').length
  await own.supervisor.ensureTree()
  await own.jobs.ensureJob('ended', job('ended'))
  await untilEnded('ended', own.jobs)
  await own.jobs.ensureJob('wait', job('wait'))
  await until(() => existsSync(`${own.directory}/wait`))
  const running = await own.jobs.inspectJob('wait')
  if (how === 'stopped') await own.supervisor.stopTree()
  else killAll(own.directory)
  expect(processesBelow(own.directory)).toEqual([])
  expect(await own.jobs.inspectJob('ended')).toMatchObject({ is: 'ended', exitCode: 6 })
  expect(await own.jobs.inspectJob('wait')).toMatchObject({ is: 'running' })
  await own.supervisor.ensureTree()
  await until(() => lines('wait') === 2)
  const again = await own.jobs.inspectJob('wait')
  expect(again.is).toBe('running')
  expect(again).not.toEqual(running)
  expect(await own.jobs.inspectJob('ended')).toMatchObject({ is: 'ended', exitCode: 6 })
  expect(lines('ended')).toBe(1)
})

/** Kills every process, as a power failure would. */
function killAll(below: string): void {
  while (processesBelow(below).length > 0) {
    for (const { pid } of processesBelow(below)) killProcess(pid, 'SIGKILL')
  }
}
