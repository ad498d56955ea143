import { boxAddress, boxHostAddress } from '../model/network.ts'
import type { BoxPlaces } from './settings.ts'

/** Where connections go. */
export interface Place {
  /** Null when nothing there can be reached. A path is that of a socket on this machine, which has no port. */
  address: string | null
  /**
   * The address to connect from, where that tells whether the target is there: the addresses of boxes that do not run
   * lead out of the machine, to whoever answers.
   */
  from: string | undefined
  port: number
  /** Tells connections that may be used for this place from others. */
  key: string
}

export function findPlace(boxes: BoxPlaces, slot: number): Pick<Place, 'address' | 'from'> {
  if (boxes === 'none') return { address: null, from: undefined }
  if (boxes === 'host') return { address: '127.0.0.1', from: undefined }
  return { address: boxAddress(boxes.homeNumber, slot), from: boxHostAddress(boxes.homeNumber, slot) }
}
