// Addresses of boxes. They are computed from the home number and the slot, so that none has to be stored.
// A private IPv6 address is `fdaa`, 32 bits of network (8 of the home, 24 of the network number), 32 bits of host, 32
// bits of machine (its slot) and 16 bits for use by the machine.

const loopbackAddress = /^(?:::1|(?:::ffff:)?127\.\d{1,3}\.\d{1,3}\.\d{1,3})$/i

/** Whether a host name or address, with or without the brackets of a URL, refers to the loopback interface. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || loopbackAddress.test(host.replace(/^\[(.*)\]$/, '$1'))
}

// 100.64.0.0/10 is reserved for carrier-grade NAT, so it does not collide with customer networks. A box gets a /30.
const firstAddress = (100 << 24) | (64 << 16)
const slotsPerHome = 1024

/** The IPv4 address at which the host reaches a box with its own network namespace. */
export function boxAddress(homeNumber: number, slot: number): string {
  return dotted(boxBlockStart(homeNumber, slot) + 2)
}

/** The host's end of the box's veth pair, which exists only while the box runs. */
export function boxHostAddress(homeNumber: number, slot: number): string {
  return dotted(boxBlockStart(homeNumber, slot) + 1)
}

/** The IPv4 range of all boxes of a home. */
export function homeAddresses(homeNumber: number): string {
  return `${dotted(boxBlockStart(homeNumber, 0))}/20`
}

function boxBlockStart(homeNumber: number, slot: number): number {
  if (!Number.isInteger(slot) || slot < 0 || slot >= slotsPerHome) throw new Error(`not a box slot: ${slot}`)
  return firstAddress + (homeNumber * slotsPerHome + slot) * 4
}

function dotted(address: number): string {
  return [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join('.')
}

const networksPerHome = 2 ** 24
/** The host field of machine addresses. Host 0 holds the platform's own addresses, such as those of services. */
const hostNumber = 1

/** The IPv6 range of all private networks of a home. */
export function privateAddresses(homeNumber: number): string {
  return `fdaa:${(homeNumber << 8).toString(16)}::/24`
}

export function networkPrefix(homeNumber: number, networkNumber: number): string {
  return `${networkGroups(homeNumber, networkNumber)}::/48`
}

/** A machine's address in its private network. */
export function machineAddress(homeNumber: number, networkNumber: number, slot: number): string {
  return `${machineGroups(homeNumber, networkNumber, slot)}:2`
}

/** The host's address on the bridge of a private network. */
export function gatewayAddress(homeNumber: number, networkNumber: number): string {
  return `${networkGroups(homeNumber, networkNumber)}:0:${hostNumber}:0:0:1`
}

/** A service address in a private network, on which the edge listens. Numbers start at 1. */
export function serviceAddress(homeNumber: number, networkNumber: number, number: number): string {
  return `${platformPrefix(homeNumber, networkNumber, number)}:3`
}

const databaseSuffixes = { pooler: 4, direct: 5 }

/** A cluster's address in a private network, from which the edge forwards to the pooler or to the server. */
export function databaseAddress(
  homeNumber: number,
  networkNumber: number,
  number: number,
  endpoint: keyof typeof databaseSuffixes,
): string {
  return `${platformPrefix(homeNumber, networkNumber, number)}:${databaseSuffixes[endpoint]}`
}

/** The DNS resolver for the machines of all private networks of a home. */
export function resolverAddress(homeNumber: number): string {
  return homeNumber === 0 ? 'fdaa::3' : `fdaa:${(homeNumber << 8).toString(16)}::3`
}

/** The platform's own addresses in a network; all traffic that the edge forwards uses them. */
export function platformAddresses(homeNumber: number, networkNumber: number): string[] {
  const services = `${networkGroups(homeNumber, networkNumber)}:0:0::/80`
  return [resolverAddress(homeNumber), gatewayAddress(homeNumber, networkNumber), services]
}

/** The port of the platform API at the resolver's address, for machines. */
export const apiPort = 4280

/** The header in which the edge passes the calling machine's address. The space keeps clients from sending it. */
export const machineHeader = 'berth machine'

/** Parses the address of a machine of this home; undefined for any other address. */
export function parseMachineAddress(
  homeNumber: number,
  address: string,
): { networkNumber: number; slot: number } | undefined {
  const groups = parseGroups(address)
  if (groups?.[0] !== 0xfdaa || groups[1]! >> 8 !== homeNumber) return undefined
  if (groups[3] !== 0 || groups[4] !== hostNumber || groups[5] !== 0) return undefined
  const networkNumber = (groups[1]! & 255) * 65_536 + groups[2]!
  const slot = groups[6]!
  return networkNumber > 0 && slot > 0 && slot < slotsPerHome ? { networkNumber, slot } : undefined
}

/** The address as 32 hexadecimal digits. */
export function toHexDigits(address: string): string {
  return parseGroups(address)!
    .map((group) => group.toString(16).padStart(4, '0'))
    .join('')
}

function parseGroups(address: string): number[] | undefined {
  const [head = '', tail] = address.split('::')
  const parse = (text: string) => (text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16)))
  const [before, after] = [parse(head), parse(tail ?? '')]
  const missing = 8 - before.length - after.length
  if (tail === undefined ? missing !== 0 : missing < 0) return undefined
  return [...before, ...Array<number>(missing).fill(0), ...after]
}

function networkGroups(homeNumber: number, networkNumber: number): string {
  if (!Number.isInteger(networkNumber) || networkNumber < 1 || networkNumber >= networksPerHome) {
    throw new Error(`not a network number: ${networkNumber}`)
  }
  const [high, low] = [(homeNumber << 8) | (networkNumber >> 16), networkNumber & 0xffff]
  return `fdaa:${high.toString(16)}:${low.toString(16)}`
}

function platformPrefix(homeNumber: number, networkNumber: number, number: number): string {
  const [high, low] = [Math.floor(number / 65_536), number & 0xffff]
  if (number < 1 || high > 0xffff) throw new Error(`not a service number: ${number}`)
  return `${networkGroups(homeNumber, networkNumber)}:0:0:${high.toString(16)}:${low.toString(16)}`
}

function machineGroups(homeNumber: number, networkNumber: number, slot: number): string {
  if (!Number.isInteger(slot) || slot < 1 || slot >= slotsPerHome) throw new Error(`not a box slot: ${slot}`)
  return `${networkGroups(homeNumber, networkNumber)}:0:${hostNumber}:0:${slot.toString(16)}`
}
