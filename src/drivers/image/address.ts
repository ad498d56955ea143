import { BlockList, isIP } from 'node:net'

const privateRanges = blockList(
  [
    ['10.0.0.0', 8],
    ['172.16.0.0', 12],
    ['192.168.0.0', 16],
    ['127.0.0.0', 8],
    ['100.64.0.0', 10],
  ],
  [
    ['::1', 128],
    ['fc00::', 7],
  ],
)

// Link-local addresses, at which clouds serve credentials to their machines, and addresses that belong to no host.
const forbiddenRanges = blockList(
  [
    ['169.254.0.0', 16],
    ['0.0.0.0', 8],
    ['224.0.0.0', 3],
  ],
  [
    ['fe80::', 10],
    ['ff00::', 8],
    ['::', 128],
  ],
)

function blockList(ipv4: [string, number][], ipv6: [string, number][]): BlockList {
  const list = new BlockList()
  for (const [address, bits] of ipv4) list.addSubnet(address, bits)
  for (const [address, bits] of ipv6) list.addSubnet(address, bits, 'ipv6')
  return list
}

export function classifyAddress(address: string): 'forbidden' | 'private' | 'public' {
  const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
  if (forbiddenRanges.check(address, family)) return 'forbidden'
  return privateRanges.check(address, family) ? 'private' : 'public'
}
