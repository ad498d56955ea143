import { BlockList, isIP, isIPv4 } from 'node:net'

/** The proxies of the operator, whose word about clients is believed. */
export class TrustedProxies {
  private readonly list = new BlockList()

  /** Each network is an address with an optional prefix length. */
  constructor(networks: string[]) {
    for (const network of networks) {
      const [address = '', bits] = network.split('/')
      const family = isIPv4(address) ? 'ipv4' : 'ipv6'
      if (bits === undefined) this.list.addAddress(address, family)
      else this.list.addSubnet(address, Number(bits), family)
    }
  }

  has(address: string): boolean {
    const version = isIP(address)
    return version !== 0 && this.list.check(address, version === 4 ? 'ipv4' : 'ipv6')
  }
}
