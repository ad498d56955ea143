// Addresses of boxes. They follow from the number of the home and the slot, so that nobody has to be asked for them.

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
