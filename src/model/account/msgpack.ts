// The subset of MessagePack that macaroons use, without extensions and floats.

export type Packed = number | string | boolean | null | Buffer | Packed[] | PackedMap
export type PackedMap = Map<Packed, Packed>

/** Writes integers in the shortest form, because signatures cover these bytes. */
export function pack(value: Packed): Buffer {
  if (value === null) return Buffer.of(0xc0)
  if (typeof value === 'boolean') return Buffer.of(value ? 0xc3 : 0xc2)
  if (typeof value === 'number') return packNumber(value)
  if (typeof value === 'string') return packText(Buffer.from(value))
  if (Buffer.isBuffer(value)) return Buffer.concat([header(value.length, [0xc4, 0xc5, 0xc6]), value])
  if (value instanceof Map) return Buffer.concat([mapHeader(value.size), ...[...value].flat(1).map(pack)])
  return packArray(value.map(pack))
}

/** Joins values that are packed already. */
export function packArray(packed: Buffer[]): Buffer {
  const { length } = packed
  return Buffer.concat([length < 16 ? Buffer.of(0x90 | length) : header(length, [undefined, 0xdc, 0xdd]), ...packed])
}

function mapHeader(size: number): Buffer {
  return size < 16 ? Buffer.of(0x80 | size) : header(size, [undefined, 0xde, 0xdf])
}

function packText(text: Buffer): Buffer {
  const head = text.length < 32 ? Buffer.of(0xa0 | text.length) : header(text.length, [0xd9, 0xda, 0xdb])
  return Buffer.concat([head, text])
}

function packNumber(value: number): Buffer {
  if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`cannot pack ${value}`)
  if (value < 0x80) return Buffer.of(value)
  if (value <= 0xffff_ffff) return header(value, [0xcc, 0xcd, 0xce])
  const bytes = Buffer.of(0xcf, 0, 0, 0, 0, 0, 0, 0, 0)
  bytes.writeBigUInt64BE(BigInt(value), 1)
  return bytes
}

/** The marker for the shortest length field (one, two or four bytes) and the value in it. */
function header(value: number, [one, two, four]: [number | undefined, number, number]): Buffer {
  if (one !== undefined && value <= 0xff) return Buffer.of(one, value)
  if (value <= 0xffff) return Buffer.of(two, value >> 8, value & 0xff)
  const bytes = Buffer.of(four, 0, 0, 0, 0)
  bytes.writeUInt32BE(value, 1)
  return bytes
}

/** Returns undefined for input that is truncated, has trailing bytes, is nested too deeply or uses other types. */
export function unpack(bytes: Buffer): Packed | undefined {
  return readAll(bytes, (from) => read(from, 0))
}

/** Returns the elements of an array as they are written; undefined for anything else and for invalid elements. */
export function splitArray(bytes: Buffer): Buffer[] | undefined {
  return readAll(bytes, (from) => {
    const elements: Buffer[] = []
    for (let left = readArrayLength(from); left > 0; left--) {
      const start = from.at
      read(from, 1)
      elements.push(bytes.subarray(start, from.at))
    }
    return elements
  })
}

function readAll<T>(bytes: Buffer, readValue: (from: Reader) => T): T | undefined {
  try {
    const reader = { bytes, at: 0 }
    const value = readValue(reader)
    return reader.at === bytes.length ? value : undefined
  } catch (err) {
    if (err instanceof RangeError) return undefined
    throw err
  }
}

function readArrayLength(from: Reader): number {
  const mark = readNumber(from, 1)
  if ((mark & 0xf0) === 0x90) return mark & 0x0f
  if (mark === 0xdc || mark === 0xdd) return readNumber(from, mark === 0xdc ? 2 : 4)
  throw new RangeError('not an array')
}

interface Reader {
  bytes: Buffer
  at: number
}

const maxDepth = 16

function read(from: Reader, depth: number): Packed {
  if (depth > maxDepth) throw new RangeError('nested too deeply')
  const mark = readNumber(from, 1)
  if (mark < 0x80) return mark
  if (mark >= 0xe0) return mark - 0x100
  if ((mark & 0xf0) === 0x80) return readMap(from, mark & 0x0f, depth)
  if ((mark & 0xf0) === 0x90) return readArray(from, mark & 0x0f, depth)
  if ((mark & 0xe0) === 0xa0) return take(from, mark & 0x1f).toString()
  switch (mark) {
    case 0xc0:
      return null
    case 0xc2:
    case 0xc3:
      return mark === 0xc3
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return take(from, readNumber(from, 2 ** (mark - 0xc4)))
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      return readNumber(from, 2 ** (mark - 0xcc))
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return readSigned(from, 2 ** (mark - 0xd0))
    case 0xd9:
    case 0xda:
    case 0xdb:
      return take(from, readNumber(from, 2 ** (mark - 0xd9))).toString()
    case 0xdc:
    case 0xdd:
      return readArray(from, readNumber(from, mark === 0xdc ? 2 : 4), depth)
    case 0xde:
    case 0xdf:
      return readMap(from, readNumber(from, mark === 0xde ? 2 : 4), depth)
    default:
      throw new RangeError(`unsupported marker ${mark}`)
  }
}

function readArray(from: Reader, length: number, depth: number): Packed[] {
  // Each element takes at least one byte, so a forged length cannot allocate much memory.
  if (length > from.bytes.length - from.at) throw new RangeError('truncated')
  return Array.from({ length }, () => read(from, depth + 1))
}

/** Rejects maps that contain a key twice, because readers would disagree on its value. */
function readMap(from: Reader, length: number, depth: number): PackedMap {
  const map: PackedMap = new Map()
  for (let left = length; left > 0; left--) map.set(read(from, depth + 1), read(from, depth + 1))
  if (map.size !== length) throw new RangeError('duplicate key')
  return map
}

function readSigned(from: Reader, size: number): number {
  const bytes = take(from, size)
  const value = size === 8 ? Number(bytes.readBigInt64BE()) : bytes.readIntBE(0, size)
  if (!Number.isSafeInteger(value)) throw new RangeError('integer is too large')
  return value
}

function readNumber(from: Reader, size: number): number {
  const bytes = take(from, size)
  const value = size === 8 ? Number(bytes.readBigUInt64BE()) : bytes.readUIntBE(0, size)
  if (!Number.isSafeInteger(value)) throw new RangeError('integer is too large')
  return value
}

function take(from: Reader, length: number): Buffer {
  if (length > from.bytes.length - from.at) throw new RangeError('truncated')
  from.at += length
  return from.bytes.subarray(from.at - length, from.at)
}
