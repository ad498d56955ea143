// Descriptions of errors that operations on apps and machines share.
import { readOnly } from '../error-text.ts'

export const noApp = 'No app has this name.'
export const noMachine = `${noApp} Or: it has no such machine.`
export const foreignApp = 'The app belongs to an organization this token may not see.'
export const notAllowed = `${foreignApp} Or: ${readOnly}`
export const leased = 'The machine is leased; send the nonce of the lease as `fly-machine-lease-nonce`.'
export const wrongState = 'The current state of the machine does not allow it.'
