import { execFileSync } from 'node:child_process'
import {
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { exitCodeOf, inspectProcess, readStateFile, readStatus, runPaths, writePipe } from './status.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-status-'))
})
afterEach(() => rmSync(directory, { recursive: true, force: true }))

/** Status files of a running process with pid 8367, as s6 2.11 and 2.13 write them. */
const stamps = '400000006af945e6385015de400000006af945e6385a6670'
const statusFiles = {
  's6 2.11': `${stamps}00000000000020af00000c`,
  's6 2.13': `${stamps}00000000000020af00000000000020af00000c`,
}

test.each(Object.entries(statusFiles))('the status file of %s is read while its supervisor runs', (_, hex) => {
  const paths = runPaths(directory, 'web')
  mkdirSync(dirname(join(directory, paths.status)), { recursive: true })
  execFileSync('mkfifo', [join(directory, paths.control)])
  writeFileSync(join(directory, paths.status), Buffer.from(hex, 'hex'))
  expect(readStatus(paths)).toBeUndefined()
  // A supervisor holds its control pipe open for reading.
  const reader = openSync(join(directory, paths.control), constants.O_RDWR)
  try {
    expect(readStatus(paths)).toMatchObject({ pid: 8367, wanted: true, ready: true })
    expect(inspectProcess(paths, false)).toMatchObject({ is: 'up', pid: 8367, restarts: 0 })
  } finally {
    closeSync(reader)
  }
})

test('the exit code of a signal is 128 plus its number', () => {
  expect([0x0000, 0x0700, 0x000f, 0x0089].map(exitCodeOf)).toEqual([0, 7, 143, 137])
})

test('only the first bytes of regular files are read, and symlinks are not followed', () => {
  writeFileSync(`${directory}/long`, 'x'.repeat(100_000))
  expect(readStateFile(directory, 'long')!.bytes.length).toBe(1024)
  symlinkSync('/etc/passwd', `${directory}/link`)
  mkdirSync(`${directory}/directory`)
  for (const name of ['link', 'directory', 'absent']) expect(readStateFile(directory, name)).toBeUndefined()
  utimesSync(`${directory}/long`, 1, 1)
  expect(readStateFile(directory, 'long')!.changedAtMs).toBe(1000)
})

test('only pipes are written to', () => {
  writeFileSync(`${directory}/file`, '')
  symlinkSync('file', `${directory}/link`)
  for (const name of ['file', 'link', 'absent']) expect(writePipe(directory, name, 'u')).toBe(false)
  expect(readStateFile(directory, 'file')!.bytes.length).toBe(0)
})

test('every file of a service is in its directory', () => {
  const { run, ...paths } = runPaths('/r', 'web')
  expect(run).toBe('/r')
  expect(Object.values(paths).every((path) => path.startsWith('web/'))).toBe(true)
})
