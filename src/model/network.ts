// Addresses of boxes. They follow from the number of the home and the slot, so that nobody has to be asked for them.

// Of the addresses that are for carriers and in no network of a customer. Four for each box.
const firstAddress = (100 << 24) | (64 << 16)
const slotsPerHome = 1024

/** Where a connection from the host reaches a box that has a network of its own. */
export function boxAddress(homeNumber: number, slot: number): string {
  const address = firstAddress + (homeNumber * slotsPerHome + slot) * 4 + 2
  return [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join('.')
}
