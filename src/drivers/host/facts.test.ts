import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { inspectControlGroups } from './cgroup-support.ts'
import {
  findLibrary,
  inspectCommand,
  inspectUserNamespaces,
  isClockPlausible,
  measureMemory,
  parseVersion,
  readOpenFileLimit,
  tryBind,
} from './facts.ts'
import { areOnOneDevice, canWrite, measureDisk, nearestExisting, supportsReflink } from './filesystem.ts'

let directory: string

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-host-'))
})

afterAll(() => rmSync(directory, { recursive: true, force: true }))

function write(name: string, text: string): string {
  const file = join(directory, name)
  mkdirSync(join(file, '..'), { recursive: true })
  writeFileSync(file, text)
  return file
}

it.each([
  ['PgBouncer 1.18.0\nlibevent 2.1.12-stable', '1.18.0'],
  ['bubblewrap 0.8.0', '0.8.0'],
  ['ip utility, iproute2-6.1.0, libbpf 1.1.2', '6.1.0'],
  ['nftables v1.0.6 (Lester Gooch #5)', '1.0.6'],
  ['s6\t2.11.3.2-1', '2.11.3.2'],
  ['no number here', undefined],
])('finds the version in %j', (text, version) => {
  expect(parseVersion(text)).toBe(version)
})

it('finds an installed program with its path', async () => {
  expect(await inspectCommand('s6-svscan')).toMatchObject({ path: expect.stringMatching(/^\/.*\/s6-svscan$/) })
})

it('does not find a library that does not exist', () => {
  expect(findLibrary('libberth-is-no-library.so.8')).toBeUndefined()
})

it('says whether user namespaces can be made, and why not', async () => {
  const state = await inspectUserNamespaces()
  expect(state.usable ? state.by : state.why).not.toBe('')
})

describe('control groups', () => {
  function inspect(name: string, mounts: string, own: string) {
    write(`${name}/mounts`, mounts)
    write(`${name}/cgroup`, own)
    return inspectControlGroups(join(directory, name))
  }

  it('are none without mounts', () => {
    expect(inspect('none', 'tmpfs / tmpfs rw 0 0\n', '0::/\n')).toEqual({ kind: 'none', controllers: [], writable: [] })
    expect(inspectControlGroups('/nonexistent').kind).toBe('none')
  })

  it('are v2 with the controllers of the own group', () => {
    write('unified/a/b/cgroup.controllers', 'cpu memory pids\n')
    write('unified/a/b/cgroup.procs', '')
    const found = inspect('v2', `cgroup2 ${directory}/unified cgroup2 rw 0 0\n`, '0::/a/b\n')
    expect(found).toEqual({ kind: 'v2', controllers: ['cpu', 'memory', 'pids'], writable: ['cpu', 'memory', 'pids'] })
  })

  it('are v1 in the hybrid kind, each controller with its own group', () => {
    mkdirSync(join(directory, 'memory/own'), { recursive: true })
    const mounts = `cgroup ${directory}/memory cgroup rw,memory 0 0
cgroup /nonexistent cgroup rw,cpu,cpuacct 0 0
cgroup2 ${directory}/unified cgroup2 rw 0 0
`
    const found = inspect('v1', mounts, '2:cpu,cpuacct:/\n1:memory:/own\n0::/\n')
    expect(found).toEqual({ kind: 'v1', controllers: ['cpu', 'memory'], writable: ['memory'] })
  })

  it('of this machine can be looked at', () => {
    expect(['v1', 'v2', 'none']).toContain(inspectControlGroups().kind)
  })
})

it('tries whether copies share blocks, and leaves nothing behind', async () => {
  const place = join(directory, 'copies')
  mkdirSync(place)
  expect(typeof (await supportsReflink(place))).toBe('boolean')
  expect(readdirSync(place)).toEqual([])
  expect(await supportsReflink('/proc')).toBeUndefined()
})

it('measures disk and memory', async () => {
  const disk = await measureDisk(directory)
  expect(disk!.totalBytes).toBeGreaterThan(disk!.freeBytes)
  expect(await measureDisk('/nonexistent')).toBeUndefined()
  const memory = measureMemory()
  expect(memory.totalBytes).toBeGreaterThan(memory.availableBytes)
  expect(memory.availableBytes).toBeGreaterThan(0)
})

it('tells whether two paths are on one device', () => {
  expect(areOnOneDevice(directory, '/proc')).toBe(false)
  expect(areOnOneDevice(directory, nearestExisting(join(directory, 'not/there')))).toBe(true)
  expect(areOnOneDevice(directory, '/nonexistent')).toBeUndefined()
})

it('finds the nearest directory that exists', () => {
  const file = write('file', '')
  expect(nearestExisting(join(directory, 'a/b/c'))).toBe(directory)
  expect(nearestExisting(join(file, 'below'))).toBe(file)
  expect(nearestExisting('/nonexistent/at/all')).toBe('/')
})

describe('an address', () => {
  let server: Server
  let port: number

  beforeAll(async () => {
    server = createServer()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    port = (server.address() as { port: number }).port
  })

  afterAll(() => server.close())

  it('that somebody listens on is not free, and is free again afterwards', async () => {
    expect(await tryBind('127.0.0.1', port)).toEqual({ free: false, code: 'EADDRINUSE' })
    await new Promise((resolve) => server.close(resolve))
    expect(await tryBind('127.0.0.1', port)).toEqual({ free: true })
    expect(await tryBind('127.0.0.1', port)).toEqual({ free: true })
  })

  it('of another machine cannot be bound', async () => {
    expect(await tryBind('192.0.2.1', 0)).toEqual({ free: false, code: 'EADDRNOTAVAIL' })
  })
})

it('knows a clock that cannot be right', () => {
  expect(isClockPlausible()).toBe(true)
  expect(isClockPlausible(0)).toBe(false)
})

it('reads the limit of open files', () => {
  const line = (hard: string) =>
    write('limits', `Limit   Soft Limit  Hard Limit  Units\nMax open files  1024   ${hard}   files\n`)
  expect(readOpenFileLimit(line('524288'))).toBe(524_288)
  expect(readOpenFileLimit(line('unlimited'))).toBe(Number.POSITIVE_INFINITY)
  expect(readOpenFileLimit('/nonexistent')).toBeUndefined()
  expect(readOpenFileLimit()).toBeGreaterThan(0)
})

it('tells what can be written', () => {
  expect(canWrite(directory)).toBe(true)
  expect(canWrite('/nonexistent')).toBe(false)
})
