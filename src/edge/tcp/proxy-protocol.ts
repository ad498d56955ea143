import { isIPv4 } from 'node:net'
import type { Peer } from '../types.ts'

/** A client together with the local address that it connected to. */
export interface ProxiedPeer extends Peer {
  localAddress: string
}

const signature = Buffer.from('0d0a0d0a000d0a515549540a', 'hex')

/** The header of the PROXY protocol, which tells a program the address of the client. */
export function proxyHeader(version: 1 | 2, peer: ProxiedPeer, defaultRemotePort: number): Buffer {
  const isV4 = isIPv4(peer.address) && isIPv4(peer.localAddress)
  const remotePort = peer.remotePort ?? defaultRemotePort
  if (version === 1) {
    const family = isV4 ? 'TCP4' : 'TCP6'
    return Buffer.from(`PROXY ${family} ${peer.address} ${peer.localAddress} ${remotePort} ${peer.port}\r\n`)
  }
  const addresses = [peer.address, peer.localAddress].map((address) => (isV4 ? ipv4Bytes(address) : ipv6Bytes(address)))
  const ports = Buffer.alloc(4)
  ports.writeUInt16BE(remotePort, 0)
  ports.writeUInt16BE(peer.port, 2)
  const body = Buffer.concat([...addresses, ports])
  const head = Buffer.from([0x21, isV4 ? 0x11 : 0x21, body.length >> 8, body.length & 255])
  return Buffer.concat([signature, head, body])
}

function ipv4Bytes(address: string): Buffer {
  return Buffer.from(address.split('.').map(Number))
}

/** An IPv4 address becomes an IPv4-mapped IPv6 address. */
function ipv6Bytes(address: string): Buffer {
  const bytes = Buffer.alloc(16)
  if (isIPv4(address)) {
    bytes.writeUInt16BE(0xffff, 10)
    ipv4Bytes(address).copy(bytes, 12)
    return bytes
  }
  const [front = '', back] = address.split('%')[0]!.split('::')
  const words = (text: string | undefined) => (text ? text.split(':').map((word) => Number.parseInt(word, 16)) : [])
  const [first, last] = [words(front), words(back)]
  const all = back === undefined ? first : [...first, ...Array(8 - first.length - last.length).fill(0), ...last]
  for (const [index, word] of all.entries()) bytes.writeUInt16BE(word & 0xffff, index * 2)
  return bytes
}
