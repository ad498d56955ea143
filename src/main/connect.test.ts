import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { findPsql, psqlEnvironment } from './connect.ts'

let directory: string

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-connect-'))
})

afterEach(() => rmSync(directory, { recursive: true, force: true }))

function putPsql(path: string, mode = 0o755): string {
  const file = join(directory, path, 'psql')
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, '')
  chmodSync(file, mode)
  return file
}

describe('findPsql', () => {
  test('prefers the newest psql of the home over those in PATH', () => {
    putPsql('toolchain/tools-0.1.1/bin')
    const newest = putPsql('toolchain/tools-0.1.2/bin')
    putPsql('usr')
    expect(findPsql(directory, join(directory, 'usr'))).toBe(newest)
  })

  test('uses the first one in PATH when the home has none', () => {
    mkdirSync(join(directory, 'toolchain/tools-0.1.2/bin'), { recursive: true })
    putPsql('one', 0o644)
    const second = putPsql('two')
    putPsql('three')
    const path = ['one', 'two', 'three'].map((name) => join(directory, name)).join(':')
    expect(findPsql(directory, `:${path}`)).toBe(second)
  })

  test('returns undefined when there is none', () => {
    expect(findPsql(join(directory, 'no-home'), '')).toBeUndefined()
  })
})

describe('psqlEnvironment', () => {
  const target = { host: 'db', port: 15_000, user: 'fly-user', password: 'secret', database: 'fly-db' }

  test('adds the target and keeps other variables', () => {
    expect(psqlEnvironment({ PAGER: 'less', PGSSLMODE: 'verify-full', PGHOST: 'elsewhere' }, target)).toEqual({
      PAGER: 'less',
      PGSSLMODE: 'verify-full',
      PGHOST: 'db',
      PGPORT: '15000',
      PGUSER: 'fly-user',
      PGPASSWORD: 'secret',
      PGDATABASE: 'fly-db',
    })
  })

  test.each(['PGHOSTADDR', 'PGSERVICE', 'PGSERVICEFILE', 'PGPASSFILE'])('removes %s', (name) => {
    expect(psqlEnvironment({ [name]: 'x' }, target)).not.toHaveProperty(name)
  })
})
