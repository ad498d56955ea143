import { isIPv4 } from 'node:net'
import type { MachineService } from './machine-config.ts'

/** A socket that listens in a machine. An IPv6 address is in brackets. */
interface Listening {
  proto: string
  address: string
}

/** Describes the services whose port the edge, which connects over IPv4, cannot reach. */
export function describeSilentServices(services: MachineService[], listening: Listening[]): string[] {
  const ports = new Map(
    services.map(({ protocol = 'tcp', internal_port }) => [`${protocol} ${internal_port}`, protocol]),
  )
  return [...ports].flatMap(([key, protocol]) => {
    const port = Number(key.split(' ')[1])
    const sockets = listening.filter(({ proto, address }) => proto.startsWith(protocol) && portOf(address) === port)
    if (sockets.some(({ address }) => isReachable(address))) return []
    const elsewhere = sockets.map(({ address }) => address).join(', ')
    const what = elsewhere
      ? `the program listens on ${elsewhere}, and the edge connects over IPv4 only`
      : `nothing listens on ${protocol} port ${port}, the internal_port of a service`
    return [`${what}; requests to the service fail`]
  })
}

function portOf(address: string): number {
  return Number(address.slice(address.lastIndexOf(':') + 1))
}

/** Loopback addresses are reachable too, and a socket on all IPv6 addresses usually takes IPv4 as well. */
function isReachable(address: string): boolean {
  const host = address.slice(0, address.lastIndexOf(':'))
  return host === '[::]' || isIPv4(host)
}
