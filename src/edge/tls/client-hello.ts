// Reads the host name from a TLS ClientHello. It is needed before the handshake starts, because apps that share an
// address may have different TLS rules.

export const handshakeRecord = 0x16
const recordHeaderBytes = 5
const maxRecordBytes = 16_384
/** The bytes before the session id: message type and length, version, random. */
const fixedHelloBytes = 38
const serverNameExtension = 0

/**
 * The host name in the first record of a connection. Undefined while the record is incomplete; empty when it names no host
 * or is not a ClientHello.
 */
export function readServerName(bytes: Buffer): string | undefined {
  if (bytes.length > 0 && bytes[0] !== handshakeRecord) return ''
  if (bytes.length < recordHeaderBytes) return undefined
  const end = recordHeaderBytes + bytes.readUInt16BE(3)
  if (end > recordHeaderBytes + maxRecordBytes) return ''
  if (bytes.length < end) return undefined
  try {
    return findServerName(bytes.subarray(recordHeaderBytes, end))
  } catch {
    return '' // a length points past the end; the TLS handshake will reject it
  }
}

/** In lowercase and without a final dot, as the hosts of requests. Names that are not plain ASCII match nothing. */
export function normalizeServerName(name: string): string {
  return /^[\x21-\x7e]*$/.test(name) ? name.toLowerCase().replace(/\.$/, '') : ''
}

function findServerName(hello: Buffer): string {
  let at = fixedHelloBytes
  at += 1 + hello.readUInt8(at) // session id
  at += 2 + hello.readUInt16BE(at) // cipher suites
  at += 1 + hello.readUInt8(at) // compression methods
  at += 2 // length of the extensions
  while (at < hello.length) {
    const [type, length] = [hello.readUInt16BE(at), hello.readUInt16BE(at + 2)]
    at += 4
    // The extension is a list with one entry: list length, entry type, name length, name.
    if (type === serverNameExtension) return hello.toString('latin1', at + 5, at + 5 + hello.readUInt16BE(at + 3))
    at += length
  }
  return ''
}
