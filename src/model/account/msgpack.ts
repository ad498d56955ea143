// The subset of MessagePack that macaroons use, without maps, extensions and floats.

export type Packed = number | string | boolean | null | Buffer | Packed[]

/** Writes integers in the shortest form, because signatures cover these bytes. */
export function pack(value: Packed): Buffer {
  if (value === null) return Buffer.of(0xc0)
  if (typeof value === 'boolean') return Buffer.of(value ? 0xc3 : 0xc2)
  if (typeof value === 'number') return packNumber(value)
  if (typeof value === 'string') return packText(Buffer.from(value))
  if (Buffer.isBuffer(value)) return Buffer.concat([header(value.length, [0xc4, 0xc5, 0xc6]), value])
  const head = value.length < 16 ? Buffer.of(0x90 | value.length) : header(value.length, [undefined, 0xdc, 0xdd])
  return Buffer.concat([head, ...value.map(pack)])
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
  try {
    const reader = { bytes, at: 0 }
    const value = read(reader, 0)
    return reader.at === bytes.length ? value : undefined
  } catch (err) {
    if (err instanceof RangeError) return undefined
    throw err
  }
}

interface Reader {
  bytes: Buffer
  at: number
}

const maxDepth = 8

function read(from: Reader, depth: number): Packed {
  if (depth > maxDepth) throw new RangeError('nested too deeply')
  const mark = readNumber(from, 1)
  if (mark < 0x80) return mark
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
    case 0xd9:
    case 0xda:
    case 0xdb:
      return take(from, readNumber(from, 2 ** (mark - 0xd9))).toString()
    case 0xdc:
    case 0xdd:
      return readArray(from, readNumber(from, mark === 0xdc ? 2 : 4), depth)
    default:
      throw new RangeError(`unsupported marker ${mark}`)
  }
}

function readArray(from: Reader, length: number, depth: number): Packed[] {
  // Each element takes at least one byte, so a forged length cannot allocate much memory.
  if (length > from.bytes.length - from.at) throw new RangeError('truncated')
  return Array.from({ length }, () => read(from, depth + 1))
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
