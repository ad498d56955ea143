import { isIP } from 'node:net'
import { OutboundError, type OutboundPolicy } from './guarded-http.ts'
import { isAllowedAddress } from './outbound-address.ts'

/** Each one that does not answer takes the time of a connection attempt. */
const maxAddresses = 4

/**
 * Resolves a host that a tenant named and returns its addresses. Throws if one of them is not allowed: a mixture is an
 * attempt to get past the check. Connections must go to these addresses, not to the name.
 */
export async function resolveTarget(
  { host, port }: { host: string; port: number },
  { allowed, lookup, onFailure }: OutboundPolicy,
): Promise<string[]> {
  const refuse = (reason: string, isTransient: boolean, cause?: unknown) => {
    onFailure({ host: `${host}:${port}`, reason })
    return new OutboundError(isTransient, cause)
  }
  const addresses = isIP(host) === 0 ? await findAddresses(host, lookup) : [host]
  if (addresses instanceof Error) throw refuse(addresses.message, true, addresses)
  const refused = addresses.find((address) => !isAllowedAddress({ host, port, address }, allowed))
  if (refused !== undefined)
    throw refuse(`the address ${refused} is not allowed; BERTH_OUTBOUND_ALLOW lists exceptions`, false)
  if (addresses.length === 0) throw refuse('the name has no address', false)
  return addresses.slice(0, maxAddresses)
}

function findAddresses(host: string, lookup: OutboundPolicy['lookup']): Promise<string[] | Error> {
  return lookup(host).catch((error: Error) => error)
}
