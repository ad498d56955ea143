// CRC-32C (Castagnoli's polynomial), which guards WAL records and pg_control. Node's zlib has only the CRC-32 of gzip.

const polynomial = 0x82f63b78

const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ polynomial : value >>> 1
  return value
})

/** The checksum of `bytes`, continued from the checksum of the bytes before them. */
export function crc32c(bytes: Uint8Array, before = 0): number {
  let state = ~before
  for (let at = 0; at < bytes.length; at++) state = table[(state ^ bytes[at]!) & 0xff]! ^ (state >>> 8)
  return ~state >>> 0
}
