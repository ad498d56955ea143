import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { removeDirectory } from '../../../test/support/directory.ts'
import type { Home } from '../host/home.ts'
import { dataDirectories } from './data-directory.ts'
import type { DataDirectories } from './driver.ts'

const id = '0123456789abcdef'
let path: string
let cluster: string
let data: DataDirectories

beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), 'berth-data-'))
  cluster = `${path}/clusters/${id}`
  data = dataDirectories({ path, run: `${path}/run` } as Home)
})
afterEach(() => removeDirectory(path))

function fill(): void {
  for (const name of ['base/1', 'global', 'pg_wal', 'pg_xact']) {
    mkdirSync(`${cluster}/data/${name}`, { recursive: true })
  }
  for (const name of ['PG_VERSION', 'global/pg_control']) writeFileSync(`${cluster}/data/${name}`, '17')
}

test('the files that a server needs are missed one by one, also if a link is in their place', () => {
  expect(data.findProblem(id)).toBe('its data directory is gone')
  fill()
  expect(data.findProblem(id)).toBeUndefined()
  for (const name of ['PG_VERSION', 'global/pg_control', 'base/1', 'base', 'pg_wal', 'pg_xact']) {
    fill()
    rmSync(`${cluster}/data/${name}`, { recursive: true })
    expect(data.findProblem(id)).toBe(`${name} is missing from its data directory`)
    symlinkSync('/etc', `${cluster}/data/${name}`)
    expect(data.findProblem(id)).toBe(`${name} is missing from its data directory`)
    rmSync(`${cluster}/data/${name}`)
  }
  rmSync(`${cluster}/data`, { recursive: true })
  symlinkSync(path, `${cluster}/data`)
  expect(data.findProblem(id)).toBe('its data directory is gone')
})

test('a data directory is moved aside once, kept and removed on request', () => {
  const name = 'damaged-20261118-120000'
  data.moveAside(id, name)
  expect(data.listAside(id)).toEqual([])
  fill()
  data.moveAside(id, name)
  fill()
  data.moveAside(id, name)
  expect(readdirSync(cluster).sort()).toEqual([name, 'data'])
  expect(readFileSync(`${cluster}/${name}/PG_VERSION`, 'utf8')).toBe('17')
  expect(data.listAside(id)).toEqual([name])
  data.removeAside(id, ['damaged-20261118-130000', 'data', '../x'])
  expect(readdirSync(cluster).sort()).toEqual([name, 'data'])
  data.removeAside(id, [name])
  expect(readdirSync(cluster)).toEqual(['data'])
  data.discard(id)
  data.discard(id)
  expect(readdirSync(cluster)).toEqual([])
  expect(() => data.moveAside(id, '../x')).toThrow('not the name of a damaged data directory')
})
