import { mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { exitCodeOf, parseStatus, readLeaf, runPaths, writePipe } from './status.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-status-'))
})
afterEach(() => rmSync(directory, { recursive: true, force: true }))

// Written by s6-supervise 2.11.3 for a process that s6-svstat shows as "up (pid 8367), ready".
const up = '400000006af945e6385015de400000006af945e6385a667000000000000020af00000c'

test('the bytes of s6 are understood', () => {
  expect(parseStatus(Buffer.from(up, 'hex'))).toEqual({
    sinceMs: Date.UTC(2026, 10, 15, 5, 40, 17, 944),
    pid: 8367,
    waitStatus: 0,
    paused: false,
    finishing: false,
    wanted: true,
    ready: true,
  })
})

test('bytes of any other kind are no reason to fail', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 80 }), (bytes) => {
      const status = parseStatus(Buffer.from(bytes))
      if (status) expect(new Date(status.sinceMs).toISOString()).toBeTruthy()
      if (bytes.length !== 35) expect(status).toBeUndefined()
    }),
  )
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 35, maxLength: 35 }), (bytes) => {
      const status = parseStatus(Buffer.from(bytes))
      if (status) expect(Number.isNaN(new Date(status.sinceMs).getTime())).toBe(false)
    }),
  )
})

test('a signal is 128 and its number', () => {
  expect([0x0000, 0x0700, 0x000f, 0x0089].map(exitCodeOf)).toEqual([0, 7, 143, 137])
})

test('only the beginning of plain files is read, and no link is followed', () => {
  writeFileSync(`${directory}/long`, 'x'.repeat(100_000))
  expect(readLeaf(`${directory}/long`)!.bytes.length).toBe(1024)
  symlinkSync('/etc/passwd', `${directory}/link`)
  mkdirSync(`${directory}/directory`)
  for (const name of ['link', 'directory', 'absent']) expect(readLeaf(`${directory}/${name}`)).toBeUndefined()
  utimesSync(`${directory}/long`, 1, 1)
  expect(readLeaf(`${directory}/long`)!.changedAtMs).toBe(1000)
})

test('only pipes are written to', () => {
  writeFileSync(`${directory}/file`, '')
  symlinkSync('file', `${directory}/link`)
  for (const name of ['file', 'link', 'absent']) expect(writePipe(`${directory}/${name}`, 'u')).toBe(false)
  expect(readLeaf(`${directory}/file`)!.bytes.length).toBe(0)
})

test('everything about a service lies in its directory', () => {
  expect(Object.values(runPaths('/r', 'web')).every((path) => path.startsWith('/r/web/'))).toBe(true)
})
