import type { Machine } from './machine.ts'

/** What a machine's description depends on besides its row and its image. */
export interface SpecContext {
  appName: string
  secrets: Record<string, string>
  homeNumber: number
  /** Whether this host supports private networks. */
  hasPrivateNetworks: boolean
}

/** The configuration cannot be carried out until its owner changes it. */
export class SpecError extends Error {}

export function getSlot({ id, slot }: Machine): number {
  if (slot === null) throw new Error(`the machine ${id} has been removed`)
  return slot
}
