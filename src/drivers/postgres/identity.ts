// PostgreSQL distinguishes clusters by their system identifier. A copied data directory has that of its original, so that
// tools would accept WAL of one for the other. The identifier is stored in pg_control, which has a checksum, and in the
// first page of each WAL file. Numbers are little-endian, as on all supported platforms.
import { randomBytes } from 'node:crypto'
import { closeSync, openSync, readdirSync, readFileSync, readSync, writeFileSync, writeSync } from 'node:fs'
import { crc32c } from '../../model/postgres/crc32c.ts'
import type { Lsn } from '../../model/postgres/wal.ts'
import { readUntrustedFile } from '../host/untrusted-file.ts'

const identifierOffset = 24
const flagsOffset = 2
const longHeaderFlag = 2

/** Gives a cleanly shut down data directory a new system identifier. */
export function reidentify(data: string, identifier: bigint = newIdentifier()): bigint {
  for (const file of readdirSync(`${data}/pg_wal`)) {
    if (/^[0-9A-F]{24}$/.test(file)) identifyWalFile(`${data}/pg_wal/${file}`, identifier)
  }
  identifyControlFile(`${data}/global/pg_control`, identifier)
  return identifier
}

export function readIdentifier(data: string): bigint {
  return readFileSync(`${data}/global/pg_control`).readBigUInt64LE(0)
}

/** The value of pg_control_version since PostgreSQL 13. */
const controlVersion = 1300
const maxControlBytes = 8192

/** The position of the last checkpoint; undefined if there is no readable pg_control. */
export function readCheckpoint(data: string): Lsn | undefined {
  const content = readUntrustedFile(data, 'global/pg_control', maxControlBytes)
  if (content === undefined || content.length < 40 || content.readUInt32LE(8) !== controlVersion) return undefined
  return content.readBigUInt64LE(32)
}

// Like initdb, this puts the time into the upper half, so that identifiers sort by age.
function newIdentifier(): bigint {
  return (BigInt(Math.floor(Date.now() / 1000)) << 32n) | BigInt(randomBytes(4).readUInt32LE())
}

function identifyControlFile(file: string, identifier: bigint): void {
  const content = readFileSync(file)
  const checksumAt = findChecksum(content)
  content.writeBigUInt64LE(identifier, 0)
  content.writeUInt32LE(crc32c(content.subarray(0, checksumAt)), checksumAt)
  // Overwrites the file without truncating it: ext4 would flush a truncated file to disk at once, while we wait.
  writeFileSync(file, content, { flag: 'r+' })
}

/** The checksum follows the last field, whose offset differs between versions: it is the first value that matches. */
function findChecksum(content: Buffer): number {
  let checksum = 0
  for (let at = 0; at + 4 <= 512; at += 4) {
    if (at >= 64 && content.readUInt32LE(at) === checksum) return at
    checksum = crc32c(content.subarray(at, at + 4), checksum)
  }
  throw new Error('pg_control contains no valid checksum')
}

function identifyWalFile(file: string, identifier: bigint): void {
  const descriptor = openSync(file, 'r+')
  try {
    const header = Buffer.alloc(identifierOffset + 8)
    readSync(descriptor, header, 0, header.length, 0)
    if ((header.readUInt16LE(flagsOffset) & longHeaderFlag) === 0) return
    header.writeBigUInt64LE(identifier, identifierOffset)
    writeSync(descriptor, header, 0, header.length, 0)
  } finally {
    closeSync(descriptor)
  }
}
