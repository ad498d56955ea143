import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { readGroupMemory, reclaimMemory, setMemoryLimit } from '../../../src/drivers/host/cgroup-memory.ts'
import { newId } from '../../../src/model/ids.ts'
import { temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const directory = temporaryDirectory()
const cgroups = cgroupDriver()
const megabyte = 1024 ** 2

afterAll(() => rmSync(directory, { recursive: true, force: true }))

describe.runIf(cgroups.cgroupsAvailable())('the memory of processes', () => {
  const name = `berth-test-${newId()}`
  let group: string
  let child: ChildProcess

  /** The process allocates 24 MB and leaves 32 MB of a file in the page cache. */
  beforeEach(async () => {
    const procs = cgroups.ensureCgroup(name, { memoryMb: 128, swapMb: 64, cpus: 1, pids: 100 })
    group = procs.map(dirname).find((one) => existsSync(`${one}/memory.stat`))!
    const program = 'open Z, "/dev/zero"; sysread Z, $x, 24 << 20; print "ready\\n"; sleep 1000'
    const script = `for file in ${procs.join(' ')}; do echo $$ > $file; done
      dd if=/dev/zero of=${directory}/file bs=1M count=32 conv=fsync 2> ${directory}/output; exec perl -e '$| = 1; ${program}'`
    child = spawn('sh', ['-c', script], { stdio: ['ignore', 'pipe', 'inherit'] })
    let output = ''
    child.stdout!.on('data', (data) => {
      output += data
    })
    await until(() => output.includes('ready'))
  })

  afterEach(async () => {
    child.kill('SIGKILL')
    await once(child, 'close')
    await cgroups.removeCgroup(name)
  })

  test('is measured without the page cache', () => {
    const { limitBytes, usedBytes } = readGroupMemory(group)!
    expect(limitBytes).toBe(128 * megabyte)
    expect(usedBytes).toBeGreaterThan(24 * megabyte)
    expect(usedBytes).toBeLessThan(48 * megabyte)
  })

  test('is reclaimed as far as possible, and the limit stays', async () => {
    const freed = await reclaimMemory(group, 8 * megabyte)
    expect(freed).toBeGreaterThan(4 * megabyte)
    expect(freed).toBeLessThan(20 * megabyte)
    expect(await reclaimMemory(group, 1000 * megabyte)).toBeGreaterThan(8 * megabyte)
    expect(await reclaimMemory(group, 0)).toBe(0)
    expect(readGroupMemory(group)!.limitBytes).toBe(128 * megabyte)
    expect(child.exitCode).toBeNull()
  })

  test('gets another limit unless the processes need more', async () => {
    expect(await setMemoryLimit(group, 256 * megabyte)).toBe(true)
    expect(readGroupMemory(group)!.limitBytes).toBe(256 * megabyte)
    expect(await setMemoryLimit(group, 40 * megabyte)).toBe(true)
    expect(readGroupMemory(group)!.limitBytes).toBe(40 * megabyte)
    expect(await setMemoryLimit(group, 8 * megabyte)).toBe(false)
    expect(readGroupMemory(group)!.limitBytes).toBe(40 * megabyte)
    expect(child.exitCode).toBeNull()
    cgroups.ensureCgroup(name, { memoryMb: 512, swapMb: 0, cpus: 1, pids: 100 })
    expect(readGroupMemory(group)!.limitBytes).toBe(512 * megabyte)
  })
})

describe('memory in version 2', () => {
  const group = `${directory}/v2`
  const write = (file: string, text: string | number) => writeFileSync(`${group}/${file}`, `${text}\n`)

  beforeEach(() => {
    mkdirSync(group, { recursive: true })
    write('memory.max', 256 * megabyte)
    write('memory.current', 100 * megabyte)
    write('memory.stat', `anon 1\ninactive_file ${10 * megabyte}\nactive_file ${20 * megabyte}`)
    write('memory.reclaim', '')
  })

  test('is measured, reclaimed and limited', async () => {
    expect(readGroupMemory(group)).toEqual({ limitBytes: 256 * megabyte, usedBytes: 70 * megabyte })
    expect(await reclaimMemory(group, 5 * megabyte)).toBe(0)
    expect(readFileSync(`${group}/memory.reclaim`, 'utf8')).toBe(String(5 * megabyte))
    expect(await setMemoryLimit(group, 128 * megabyte)).toBe(true)
    expect(readFileSync(`${group}/memory.max`, 'utf8')).toBe(String(128 * megabyte))
    expect(await setMemoryLimit(group, 64 * megabyte)).toBe(false)
    expect(readFileSync(`${group}/memory.reclaim`, 'utf8')).toBe(String(36 * megabyte))
    expect(readGroupMemory(group)!.limitBytes).toBe(128 * megabyte)
  })

  test('is unknown for a group that does not exist', async () => {
    expect(readGroupMemory(`${directory}/none`)).toBeUndefined()
    expect(await reclaimMemory(`${directory}/none`, 1)).toBe(0)
    expect(await setMemoryLimit(`${directory}/none`, 1)).toBe(false)
  })
})
