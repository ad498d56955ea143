// PostgreSQL tells clusters apart by their system identifier, which a copied data directory shares with its original:
// tools that read WAL would take one for the other. It stands in pg_control, under a checksum, and in the first page
// of each WAL file. Numbers are little-endian, as on every machine we run on.
import { randomBytes } from 'node:crypto'
import { closeSync, openSync, readdirSync, readFileSync, readSync, writeFileSync, writeSync } from 'node:fs'

const identifierInPage = 24
const flagsInPage = 2
const longHeaderFlag = 2

/** Gives a data directory that was shut down cleanly a system identifier of its own. */
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

// As PostgreSQL makes it: the time in the upper half, so that identifiers sort by age.
function newIdentifier(): bigint {
  return (BigInt(Math.floor(Date.now() / 1000)) << 32n) | BigInt(randomBytes(4).readUInt32LE())
}

function identifyControlFile(file: string, identifier: bigint): void {
  const content = readFileSync(file)
  const checksumAt = findChecksum(content)
  content.writeBigUInt64LE(identifier, 0)
  content.writeUInt32LE(crc32c(content.subarray(0, checksumAt)), checksumAt)
  // In its place: a file that was cut off and written anew ext4 writes to the disk at once, while we wait.
  writeFileSync(file, content, { flag: 'r+' })
}

/** The checksum follows the last field, whose place differs between versions: it is where it holds. */
function findChecksum(content: Buffer): number {
  let state = initial
  for (let at = 0; at + 4 <= 512; at++) {
    if (at >= 64 && at % 4 === 0 && content.readUInt32LE(at) === finish(state)) return at
    state = step(state, content[at]!)
  }
  throw new Error('pg_control holds no valid checksum')
}

function identifyWalFile(file: string, identifier: bigint): void {
  const descriptor = openSync(file, 'r+')
  try {
    const header = Buffer.alloc(identifierInPage + 8)
    readSync(descriptor, header, 0, header.length, 0)
    if ((header.readUInt16LE(flagsInPage) & longHeaderFlag) === 0) return
    header.writeBigUInt64LE(identifier, identifierInPage)
    writeSync(descriptor, header, 0, header.length, 0)
  } finally {
    closeSync(descriptor)
  }
}

const initial = 0xffffffff
const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1
  return value
})

function step(state: number, byte: number): number {
  return table[(state ^ byte) & 0xff]! ^ (state >>> 8)
}

function finish(state: number): number {
  return (state ^ initial) >>> 0
}

/** The checksum with Castagnoli's polynomial, which zlib does not have. */
export function crc32c(bytes: Uint8Array): number {
  let state = initial
  for (const byte of bytes) state = step(state, byte)
  return finish(state)
}
