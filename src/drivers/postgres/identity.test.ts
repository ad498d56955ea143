import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { crc32c } from '../../model/postgres/crc32c.ts'
import { readIdentifier, reidentify } from './identity.ts'

const data = mkdtempSync(join(tmpdir(), 'berth-identity-'))
afterAll(() => rmSync(data, { recursive: true, force: true }))

test('writes the identifier into the control file and the first page of each WAL file', () => {
  mkdirSync(`${data}/global`)
  mkdirSync(`${data}/pg_wal/archive_status`, { recursive: true })
  const control = Buffer.alloc(8192, 0)
  control.fill(7, 0, 288)
  control.writeUInt32LE(crc32c(control.subarray(0, 288)), 288)
  writeFileSync(`${data}/global/pg_control`, control)
  const page = Buffer.alloc(64)
  page.writeUInt16LE(2, 2)
  writeFileSync(`${data}/pg_wal/000000010000000000000001`, page)
  writeFileSync(`${data}/pg_wal/00000001.history`, 'untouched')

  expect(reidentify(data, 1234n)).toBe(1234n)
  expect(readIdentifier(data)).toBe(1234n)
  const written = readFileSync(`${data}/global/pg_control`)
  expect(written.readUInt32LE(288)).toBe(crc32c(written.subarray(0, 288)))
  expect(readFileSync(`${data}/pg_wal/000000010000000000000001`).readBigUInt64LE(24)).toBe(1234n)
  expect(readFileSync(`${data}/pg_wal/00000001.history`, 'utf8')).toBe('untouched')
  expect(reidentify(data)).not.toBe(reidentify(data))
})

test('refuses a control file whose checksum does not match', () => {
  writeFileSync(`${data}/global/pg_control`, Buffer.alloc(8192, 3))
  expect(() => reidentify(data)).toThrow('no valid checksum')
})
