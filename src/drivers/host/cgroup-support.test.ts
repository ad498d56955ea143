import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { inspectControlGroups, inspectSwap } from './cgroup-support.ts'

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

function inspect(name: string, mounts: string, own: string) {
  write(`${name}/mounts`, mounts)
  write(`${name}/cgroup`, own)
  return inspectControlGroups(join(directory, name))
}

test('reports no control groups without mounts', () => {
  expect(inspect('none', 'tmpfs / tmpfs rw 0 0\n', '0::/\n')).toEqual({ kind: 'none', controllers: [], writable: [] })
  expect(inspectControlGroups('/nonexistent').kind).toBe('none')
})

test('reports version 2 with the controllers of the own group', () => {
  write('unified/a/b/cgroup.controllers', 'cpu memory pids\n')
  write('unified/a/b/cgroup.procs', '')
  const found = inspect('v2', `cgroup2 ${directory}/unified cgroup2 rw 0 0\n`, '0::/a/b\n')
  expect(found).toEqual({ kind: 'v2', controllers: ['cpu', 'memory', 'pids'], writable: ['cpu', 'memory', 'pids'] })
})

test('reports version 1 on a hybrid host, with a separate group for each controller', () => {
  mkdirSync(join(directory, 'memory/own'), { recursive: true })
  const mounts = `cgroup ${directory}/memory cgroup rw,memory 0 0
cgroup /nonexistent cgroup rw,cpu,cpuacct 0 0
cgroup2 ${directory}/unified cgroup2 rw 0 0
`
  const found = inspect('v1', mounts, '2:cpu,cpuacct:/\n1:memory:/own\n0::/\n')
  expect(found).toEqual({ kind: 'v1', controllers: ['cpu', 'memory'], writable: ['memory'] })
})

test('inspects the control groups of this host', () => {
  expect(['v1', 'v2', 'none']).toContain(inspectControlGroups().kind)
})

test.each([
  ['without swap', '', { present: false, limited: false }],
  ['with swap that is not accounted', '/dev/sda2 partition 1024 0 -2\n', { present: true, limited: false }],
])('inspects a host %s', (name, swaps, expected) => {
  write(`${name}/self/mounts`, `cgroup ${directory}/memory cgroup rw,memory 0 0\n`)
  write(`${name}/self/cgroup`, '1:memory:/\n')
  write(`${name}/swaps`, `Filename Type Size Used Priority\n${swaps}`)
  expect(inspectSwap(join(directory, name))).toEqual(expected)
})
