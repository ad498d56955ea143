import type { Socket } from 'node:net'
import type { Peer } from '../types.ts'
import type { TrustedProxies } from './trusted-proxy.ts'

export function peerOf(socket: Socket, secure: boolean, proxies: TrustedProxies): Peer {
  const address = withoutV4Prefix(socket.remoteAddress)
  const { localPort = 0, remotePort = 0 } = socket
  return {
    address: address || 'unknown',
    secure,
    port: localPort,
    remotePort,
    trusted: proxies.has(address),
    proxies,
  }
}

export function localAddressOf(socket: Socket): string {
  return withoutV4Prefix(socket.localAddress)
}

/** Turns an IPv4-mapped IPv6 address into an IPv4 address. */
function withoutV4Prefix(address = ''): string {
  return address.replace(/^::ffff:/, '')
}
