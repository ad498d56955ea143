import { type OutboundPolicy, outboundPolicy } from '../../src/drivers/network/guarded-http.ts'
import { parseAllowedTarget } from '../../src/drivers/network/outbound-address.ts'

/** Allows the registries of tests, which listen on loopback. */
export function loopbackPolicy(options: Partial<OutboundPolicy> = {}): OutboundPolicy {
  return outboundPolicy({ allowed: [parseAllowedTarget('127.0.0.1')], ...options })
}
