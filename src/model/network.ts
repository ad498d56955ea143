// Addresses of boxes. They follow from the number of the home and the slot, so that nobody has to be asked for them.
// Private ones are `fdaa`, 32 bits of network (8 of the home, 24 of the network's number), 32 bits of host, 32 bits of
// machine (its slot) and 16 bits that are the machine's own.

// Of the addresses that are for carriers and in no network of a customer. Four for each box.
const firstAddress = (100 << 24) | (64 << 16)
const slotsPerHome = 1024

/** Where a connection from the host reaches a box that has a network of its own. */
export function boxAddress(homeNumber: number, slot: number): string {
  return dotted(firstOf(homeNumber, slot) + 2)
}

/** The host's end of the box's link, which exists exactly while the box runs. */
export function boxHostAddress(homeNumber: number, slot: number): string {
  return dotted(firstOf(homeNumber, slot) + 1)
}

/** Those of all boxes of a home. */
export function homeAddresses(homeNumber: number): string {
  return `${dotted(firstOf(homeNumber, 0))}/20`
}

function firstOf(homeNumber: number, slot: number): number {
  if (!Number.isInteger(slot) || slot < 0 || slot >= slotsPerHome) throw new Error(`not the slot of a box: ${slot}`)
  return firstAddress + (homeNumber * slotsPerHome + slot) * 4
}

function dotted(address: number): string {
  return [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join('.')
}

const networksPerHome = 2 ** 24
/** Zero is what the platform itself has in a network, such as the addresses of services. */
const hostNumber = 1

/** Those of all private networks of a home. */
export function privateAddresses(homeNumber: number): string {
  return `fdaa:${(homeNumber << 8).toString(16)}::/24`
}

/** All addresses of a private network. */
export function networkPrefix(homeNumber: number, networkNumber: number): string {
  return `${networkStart(homeNumber, networkNumber)}::/48`
}

/** Of a machine in its private network. The sixteen bits after the slot are its own. */
export function machineAddress(homeNumber: number, networkNumber: number, slot: number): string {
  return `${machineStart(homeNumber, networkNumber, slot)}:2`
}

/** The host's own address among the machines of a network. */
export function gatewayAddress(homeNumber: number, networkNumber: number): string {
  return `${networkStart(homeNumber, networkNumber)}:0:${hostNumber}:0:0:1`
}

/** Of a service in a private network, which the edge answers at: there is one for each number from one on. */
export function serviceAddress(homeNumber: number, networkNumber: number, number: number): string {
  return `${placeStart(homeNumber, networkNumber, number)}:3`
}

const databasePlaces = { pooler: 4, direct: 5 }

/** Of a cluster in a private network, where the edge leads to its pooler or to the server itself. */
export function databaseAddress(
  homeNumber: number,
  networkNumber: number,
  number: number,
  endpoint: keyof typeof databasePlaces,
): string {
  return `${placeStart(homeNumber, networkNumber, number)}:${databasePlaces[endpoint]}`
}

/** Who answers names for the machines of all private networks of a home. */
export function resolverAddress(homeNumber: number): string {
  return homeNumber === 0 ? 'fdaa::3' : `fdaa:${(homeNumber << 8).toString(16)}::3`
}

/** What the platform itself has in a network: whatever it carries for a machine comes from there and goes there. */
export function platformAddresses(homeNumber: number, networkNumber: number): string[] {
  const places = `${networkStart(homeNumber, networkNumber)}:0:0::/80`
  return [resolverAddress(homeNumber), gatewayAddress(homeNumber, networkNumber), places]
}

/** Where the platform's API answers machines, at the address of the resolver. */
export const apiPort = 4280

/** Tells it which one asks, by its address. No client can send a header of this name. */
export const machineHeader = 'berth machine'

/** Which network and slot an address belongs to, if it is one of a machine of this home. */
export function findMachineOf(
  homeNumber: number,
  address: string,
): { networkNumber: number; slot: number } | undefined {
  const groups = groupsOf(address)
  if (groups?.[0] !== 0xfdaa || groups[1]! >> 8 !== homeNumber) return undefined
  if (groups[3] !== 0 || groups[4] !== hostNumber || groups[5] !== 0) return undefined
  const networkNumber = (groups[1]! & 255) * 65_536 + groups[2]!
  const slot = groups[6]!
  return networkNumber > 0 && slot > 0 && slot < slotsPerHome ? { networkNumber, slot } : undefined
}

/** As 32 hexadecimal digits. */
export function writtenOut(address: string): string {
  return groupsOf(address)!
    .map((group) => group.toString(16).padStart(4, '0'))
    .join('')
}

function groupsOf(address: string): number[] | undefined {
  const [head = '', tail] = address.split('::')
  const parse = (text: string) => (text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16)))
  const [before, after] = [parse(head), parse(tail ?? '')]
  const missing = 8 - before.length - after.length
  if (tail === undefined ? missing !== 0 : missing < 0) return undefined
  return [...before, ...Array<number>(missing).fill(0), ...after]
}

function networkStart(homeNumber: number, networkNumber: number): string {
  if (!Number.isInteger(networkNumber) || networkNumber < 1 || networkNumber >= networksPerHome) {
    throw new Error(`not the number of a network: ${networkNumber}`)
  }
  const [high, low] = [(homeNumber << 8) | (networkNumber >> 16), networkNumber & 0xffff]
  return `fdaa:${high.toString(16)}:${low.toString(16)}`
}

/** Of what the platform itself has in a network. */
function placeStart(homeNumber: number, networkNumber: number, number: number): string {
  const [high, low] = [Math.floor(number / 65_536), number & 0xffff]
  if (number < 1 || high > 0xffff) throw new Error(`not the number of a service: ${number}`)
  return `${networkStart(homeNumber, networkNumber)}:0:0:${high.toString(16)}:${low.toString(16)}`
}

function machineStart(homeNumber: number, networkNumber: number, slot: number): string {
  if (!Number.isInteger(slot) || slot < 1 || slot >= slotsPerHome) throw new Error(`not the slot of a box: ${slot}`)
  return `${networkStart(homeNumber, networkNumber)}:0:${hostNumber}:0:${slot.toString(16)}`
}
