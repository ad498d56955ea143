import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { areOnSameDevice, canWrite, measureDisk, nearestExisting, supportsReflink } from './filesystem.ts'

let directory: string

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-host-'))
})

afterAll(() => rmSync(directory, { recursive: true, force: true }))

test('finds out whether copies share blocks, and removes its probe', async () => {
  const copies = join(directory, 'copies')
  mkdirSync(copies)
  expect(typeof (await supportsReflink(copies))).toBe('boolean')
  expect(readdirSync(copies)).toEqual([])
  expect(await supportsReflink('/proc')).toBeUndefined()
})

test('measures the disk of a path', async () => {
  const disk = await measureDisk(directory)
  expect(disk!.totalBytes).toBeGreaterThan(disk!.freeBytes)
  expect(await measureDisk('/nonexistent')).toBeUndefined()
})

test('compares the devices of two paths', () => {
  expect(areOnSameDevice(directory, '/proc')).toBe(false)
  expect(areOnSameDevice(directory, nearestExisting(join(directory, 'not/there')))).toBe(true)
  expect(areOnSameDevice(directory, '/nonexistent')).toBeUndefined()
})

test('finds the nearest directory that exists', () => {
  const file = join(directory, 'file')
  writeFileSync(file, '')
  expect(nearestExisting(join(directory, 'a/b/c'))).toBe(directory)
  expect(nearestExisting(join(file, 'below'))).toBe(file)
  expect(nearestExisting('/nonexistent/at/all')).toBe('/')
})

test('reports whether a path is writable', () => {
  expect(canWrite(directory)).toBe(true)
  expect(canWrite('/nonexistent')).toBe(false)
})
