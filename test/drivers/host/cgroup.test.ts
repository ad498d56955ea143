import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cgroupDriver, cgroupName } from '../../../src/drivers/host/cgroup.ts'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import type { Supervisor } from '../../../src/drivers/s6/driver.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { newId } from '../../../src/model/ids.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const path = temporaryDirectory()
const limits = { memoryMb: 256, cpus: 1.5, pids: 100 }
const cgroups = cgroupDriver()
let home: Home
let supervisor: Supervisor

beforeAll(async () => {
  home = await openHome(`${path}/h`, { uidBase: 300_000, registry: `${path}/registry` })
  supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
})
afterAll(async () => {
  await removeTemporaryHome(`${path}/h`)
  rmSync(path, { recursive: true, force: true })
})

function groupsOf(name: string): string {
  return readFileSync(`/proc/${name}/cgroup`, 'utf8')
}

async function runningPid(service: string): Promise<number> {
  let pid = 0
  await until(async () => {
    const state = await supervisor.inspectService(service)
    pid = state.is === 'up' ? state.pid : 0
    return pid !== 0 && readFileSync(`/proc/${pid}/cmdline`, 'utf8').startsWith('sleep')
  })
  return pid
}

describe.runIf(cgroups.cgroupsAvailable())('control groups of this host', () => {
  test('limit a service from its start, and hold only its process', async () => {
    const name = cgroupName(home, newId())
    const files = cgroups.ensureCgroup(name, limits)
    cgroups.ensureCgroup(name, limits)
    const uid = 300_001
    await supervisor.ensureService('limited', { command: ['sleep', '1000'], uid, cgroup: files })
    const pid = await runningPid('limited')
    expect(groupsOf(String(pid)).split(`/${name}\n`).length - 1).toBe(files.length)
    for (const file of files) expect(readFileSync(file, 'utf8').trim().split('\n')).toEqual([String(pid)])
    await supervisor.removeService('limited')
    await cgroups.removeCgroup(name)
    await cgroups.removeCgroup(name)
    expect(files.filter((file) => existsSync(dirname(file)))).toEqual([])
  })

  test('limit swap in addition to memory, when either changes', async () => {
    const name = cgroupName(home, newId())
    const read = (group: string, file: string) =>
      existsSync(`${group}/${file}`) ? Number(readFileSync(`${group}/${file}`, 'utf8')) / 1024 ** 2 : undefined
    for (const [memoryMb, swapMb] of [
      [256, 64],
      [512, 0],
      [64, 32],
      [128, undefined],
    ] as const) {
      const files = cgroups.ensureCgroup(name, { ...limits, memoryMb, ...(swapMb !== undefined && { swapMb }) })
      expect(cgroups.findCgroup(name)).toEqual(files)
      const group = files.map(dirname).find((one) => existsSync(`${one}/memory.stat`))!
      expect(read(group, 'memory.limit_in_bytes') ?? read(group, 'memory.max')).toBe(memoryMb)
      const withMemory = read(group, 'memory.memsw.limit_in_bytes')
      if (withMemory !== undefined && swapMb !== undefined) expect(withMemory).toBe(memoryMb + swapMb)
      if (withMemory !== undefined && swapMb === undefined) expect(withMemory).toBeGreaterThan(2 ** 40)
      const swapOnly = read(group, 'memory.swap.max')
      if (swapOnly !== undefined && swapMb !== undefined) expect(swapOnly).toBe(swapMb)
    }
    await cgroups.removeCgroup(name)
  })

  test('are created again when a service starts after a reboot, and get their limits later', async () => {
    const name = cgroupName(home, newId())
    const files = cgroups.ensureCgroup(name, limits)
    await cgroups.removeCgroup(name)
    await supervisor.ensureService('returned', { command: ['sleep', '1000'], cgroup: files })
    const pid = await runningPid('returned')
    expect(groupsOf(String(pid))).toContain(`/${name}\n`)
    cgroups.ensureCgroup(name, limits)
    const memory = files.map((file) => `${dirname(file)}/memory.limit_in_bytes`).find((file) => existsSync(file))
    if (memory) expect(Number(readFileSync(memory, 'utf8'))).toBe(256 * 1024 * 1024)
    await supervisor.removeService('returned')
    await cgroups.removeCgroup(name)
  })
})

test('starts a service that cannot join its groups, and logs that', async () => {
  await supervisor.ensureService('free', { command: ['sleep', '1000'], cgroup: ['/proc/nowhere/cgroup.procs'] })
  await runningPid('free')
  await until(() => supervisor.readLog('free', 5).join().includes('without the limits of /proc/nowhere/cgroup.procs'))
})

describe('in version 2', () => {
  const membership = `${path}/membership`

  function unified(directory: string, controllers: string, enabled: string): string {
    mkdirSync(directory, { recursive: true })
    writeFileSync(`${directory}/cgroup.controllers`, `${controllers}\n`)
    writeFileSync(`${directory}/cgroup.subtree_control`, `${enabled}\n`)
    return directory
  }

  test('writes the limits whose controllers are enabled', () => {
    const root = unified(`${path}/v2`, 'cpu io memory', 'cpu memory')
    writeFileSync(membership, '0::/user.slice\n')
    const files = cgroupDriver(root, membership).ensureCgroup('berth-1-x', limits)
    expect(files).toEqual([`${root}/berth-1-x/cgroup.procs`])
    expect(readFileSync(`${root}/berth-1-x/memory.max`, 'utf8')).toBe('268435456')
    expect(readFileSync(`${root}/berth-1-x/cpu.max`, 'utf8')).toBe('150000 100000')
    expect(readFileSync(`${root}/berth-1-x/cpu.weight`, 'utf8')).toBe('150')
  })

  test('finds no groups if memory cannot be limited', () => {
    const root = unified(`${path}/v2-bare`, 'hugetlb', '')
    const found = cgroupDriver(root, membership)
    expect(found.cgroupsAvailable()).toBe(false)
    expect(found.ensureCgroup('berth-1-x', limits)).toEqual([])
  })

  test('uses the delegated part of the hierarchy', () => {
    const root = unified(`${path}/v2-user`, 'memory', '')
    const delegated = unified(`${root}/user.slice/app.slice`, 'cpu memory pids', 'cpu memory pids')
    writeFileSync(membership, '0::/user.slice/app.slice/berth.service\n')
    const [file] = cgroupDriver(root, membership).ensureCgroup('berth-1-x', limits)
    expect(file).toBe(`${delegated}/berth-1-x/cgroup.procs`)
    expect(readFileSync(`${delegated}/berth-1-x/pids.max`, 'utf8')).toBe('100')
  })
})
