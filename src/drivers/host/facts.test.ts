import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
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

let directory: string

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-host-'))
})

afterAll(() => rmSync(directory, { recursive: true, force: true }))

test.each([
  ['PgBouncer 1.18.0\nlibevent 2.1.12-stable', '1.18.0'],
  ['bubblewrap 0.8.0', '0.8.0'],
  ['ip utility, iproute2-6.1.0, libbpf 1.1.2', '6.1.0'],
  ['nftables v1.0.6 (Lester Gooch #5)', '1.0.6'],
  ['s6\t2.11.3.2-1', '2.11.3.2'],
  ['This is perl 5, version 36, subversion 0 (v5.36.0) built for x86_64-linux-gnu', '5.36.0'],
  ['6.18.44-fc', '6.18.44'],
  ['no number here', undefined],
])('finds the version in %j', (text, version) => {
  expect(parseVersion(text)).toBe(version)
})

test('finds an installed program with its path', async () => {
  expect(await inspectCommand('s6-svscan')).toMatchObject({ path: expect.stringMatching(/^\/.*\/s6-svscan$/) })
})

test('does not find a library that does not exist', () => {
  expect(findLibrary('libberth-is-no-library.so.8')).toBeUndefined()
})

test('reports whether user namespaces are usable, and why not', async () => {
  const state = await inspectUserNamespaces()
  expect(state.usable ? state.by : state.why).not.toBe('')
})

test('measures memory', () => {
  const memory = measureMemory()
  expect(memory.totalBytes).toBeGreaterThan(memory.availableBytes)
  expect(memory.availableBytes).toBeGreaterThan(0)
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

  test('is not free while a server listens on it, and is free afterwards', async () => {
    expect(await tryBind('127.0.0.1', port)).toEqual({ free: false, code: 'EADDRINUSE' })
    await new Promise((resolve) => server.close(resolve))
    expect(await tryBind('127.0.0.1', port)).toEqual({ free: true })
    expect(await tryBind('127.0.0.1', port)).toEqual({ free: true })
  })

  test('of another host cannot be bound', async () => {
    expect(await tryBind('192.0.2.1', 0)).toEqual({ free: false, code: 'EADDRNOTAVAIL' })
  })
})

test('recognizes a clock that must be wrong', () => {
  expect(isClockPlausible()).toBe(true)
  expect(isClockPlausible(0)).toBe(false)
})

test('reads the limit of open files', () => {
  const line = (hard: string) => {
    const file = join(directory, 'limits')
    writeFileSync(file, `Limit   Soft Limit  Hard Limit  Units\nMax open files  1024   ${hard}   files\n`)
    return file
  }
  expect(readOpenFileLimit(line('524288'))).toBe(524_288)
  expect(readOpenFileLimit(line('unlimited'))).toBe(Number.POSITIVE_INFINITY)
  expect(readOpenFileLimit('/nonexistent')).toBeUndefined()
  expect(readOpenFileLimit()).toBeGreaterThan(0)
})
