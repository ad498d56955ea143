import { networkInterfaces } from 'node:os'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { classifyAddress, isAllowedAddress, parseAllowedTarget } from './outbound-address.ts'

test.each([
  ['127.0.0.1', 'internal'],
  ['10.1.2.3', 'internal'],
  ['172.16.0.0', 'internal'],
  ['172.31.255.255', 'internal'],
  ['192.168.0.1', 'internal'],
  ['100.64.0.1', 'internal'],
  ['100.127.255.255', 'internal'],
  ['192.0.0.1', 'internal'],
  ['192.0.2.1', 'internal'],
  ['192.88.99.1', 'internal'],
  ['198.18.0.1', 'internal'],
  ['198.19.255.255', 'internal'],
  ['198.51.100.1', 'internal'],
  ['203.0.113.1', 'internal'],
  ['::1', 'internal'],
  ['fd00::1', 'internal'],
  ['fdaa:0:1::2', 'internal'],
  ['fc00::', 'internal'],
  ['::ffff:10.0.0.1', 'internal'],
  ['::ffff:8.8.8.8', 'internal'],
  ['::8.8.8.8', 'internal'],
  ['::ffff:0:8.8.8.8', 'internal'],
  ['64:ff9b::8.8.8.8', 'internal'],
  ['64:ff9b::a00:1', 'internal'],
  ['64:ff9b:1::1', 'internal'],
  ['100::1', 'internal'],
  ['2001::1', 'internal'],
  ['2001:2::1', 'internal'],
  ['2001:20::1', 'internal'],
  ['2001:db8::1', 'internal'],
  ['2002:7f00:1::', 'internal'],
  ['3fff::1', 'internal'],
  ['5f00::1', 'internal'],
  ['4000::1', 'internal'],
  ['169.254.169.254', 'forbidden'],
  ['::ffff:169.254.169.254', 'forbidden'],
  ['::ffff:a9fe:a9fe', 'forbidden'],
  ['100.100.100.200', 'forbidden'],
  ['168.63.129.16', 'forbidden'],
  ['192.0.0.192', 'forbidden'],
  ['fd00:ec2::254', 'forbidden'],
  ['fe80::1', 'forbidden'],
  ['fe80::1%eth0', 'forbidden'],
  ['2600::1%eth0', 'forbidden'],
  ['fec0::1', 'forbidden'],
  ['ff02::1', 'forbidden'],
  ['0.0.0.0', 'forbidden'],
  ['0.1.2.3', 'forbidden'],
  ['::', 'forbidden'],
  ['224.0.0.1', 'forbidden'],
  ['240.0.0.1', 'forbidden'],
  ['255.255.255.255', 'forbidden'],
  ['not an address', 'forbidden'],
  ['', 'forbidden'],
  ['0x7f.1', 'forbidden'],
  ['172.15.255.255', 'public'],
  ['172.32.0.1', 'public'],
  ['100.63.255.255', 'public'],
  ['100.128.0.0', 'public'],
  ['8.8.8.8', 'public'],
  ['223.255.255.255', 'public'],
  ['2600::1', 'public'],
  ['2001:4860:4860::8888', 'public'],
])('classifies %s as %s', (address, kind) => {
  expect(classifyAddress(address)).toBe(kind)
})

test('classifies the addresses of this host as not public', () => {
  const own = Object.values(networkInterfaces()).flatMap((entries) => entries ?? [])
  expect(own.map(({ address }) => classifyAddress(address))).not.toContain('public')
})

const octet = fc.nat(255)
const ipv4 = fc.tuple(octet, octet, octet, octet)
const group = fc.nat(0xffff)
const hex = (value: number) => value.toString(16)
const pairs = ([a, b, c, d]: number[]) => `${hex(a! * 256 + b!)}:${hex(c! * 256 + d!)}`

/** The rule in another form, written from the registries of special addresses. */
function isSpecial([a = 0, b = 0, c = 0, d = 0]: number[]): boolean {
  if ([0, 10, 127].includes(a) || a >= 224) return true
  if (a === 100) return b >= 64 && b <= 127
  if (a === 169) return b === 254
  if (a === 172) return b >= 16 && b <= 31
  if (a === 192) return b === 168 || (b === 0 && (c === 0 || c === 2)) || (b === 88 && c === 99)
  if (a === 198) return b === 18 || b === 19 || (b === 51 && c === 100)
  if (a === 203) return b === 0 && c === 113
  return a === 168 && b === 63 && c === 129 && d === 16
}

test('refuses exactly the special addresses of IPv4', () => {
  const first = fc.constantFrom(0, 10, 100, 127, 168, 169, 172, 192, 198, 203, 224, 240, 255)
  const second = fc.constantFrom(0, 16, 18, 19, 31, 32, 51, 63, 64, 88, 100, 127, 128, 168, 254)
  const near = fc.tuple(first, second, fc.constantFrom(0, 2, 99, 100, 113, 129), octet)
  fc.assert(
    fc.property(fc.oneof(near, ipv4), (parts) => {
      expect(classifyAddress(parts.join('.')) === 'public').toBe(!isSpecial(parts))
    }),
    { numRuns: 1_000 },
  )
})

test('refuses every IPv6 form that embeds an IPv4 address', () => {
  fc.assert(
    fc.property(ipv4, group, (parts, more) => {
      const forms = [
        `::ffff:${parts.join('.')}`,
        `::FFFF:${pairs(parts)}`,
        `0:0:0:0:0:ffff:${pairs(parts)}`,
        `::${parts.join('.')}`,
        `::ffff:0:${pairs(parts)}`,
        `64:ff9b::${pairs(parts)}`,
        `64:ff9b:1:${hex(more)}::${pairs(parts)}`,
        `2002:${pairs(parts)}::${hex(more)}`,
        `2001:0:${pairs(parts)}::${hex(more)}`,
      ]
      expect(forms.map(classifyAddress)).not.toContain('public')
    }),
  )
})

test('never calls an address of IPv6 public that is not global unicast', () => {
  const address = fc.tuple(group, group, group, group, group, group, group, group)
  fc.assert(
    fc.property(address, (groups) => {
      const isGlobal = groups[0] >= 0x2000 && groups[0] <= 0x3fff
      expect(classifyAddress(groups.map(hex).join(':')) === 'public' && !isGlobal).toBe(false)
    }),
  )
})

function isAllowed(entry: string, host: string, port: number, address: string): boolean {
  return isAllowedAddress({ host, port, address }, [parseAllowedTarget(entry)])
}

test('allows what an operator lists, and nothing beside it', () => {
  expect(isAllowed('registry.lan:5000', 'registry.lan', 5000, '10.0.0.5')).toBe(true)
  expect(isAllowed('Registry.LAN.', 'registry.lan', 443, '10.0.0.5')).toBe(true)
  expect(isAllowed('registry.lan:5000', 'registry.lan', 5432, '10.0.0.5')).toBe(false)
  expect(isAllowed('registry.lan', 'other.lan', 443, '10.0.0.5')).toBe(false)
  expect(isAllowed('10.0.0.0/8', 'anything', 1, '10.255.0.1')).toBe(true)
  expect(isAllowed('10.0.0.0/8', 'anything', 1, '11.0.0.1')).toBe(true)
  expect(isAllowed('10.0.0.0/8', 'anything', 1, '192.168.0.1')).toBe(false)
  expect(isAllowed('127.0.0.1:5000', '127.0.0.1', 5000, '127.0.0.1')).toBe(true)
  expect(isAllowed('127.0.0.1:5000', '127.0.0.1', 5001, '127.0.0.1')).toBe(false)
  expect(isAllowed('127.0.0.1', '127.0.0.2', 5000, '127.0.0.2')).toBe(false)
  expect(isAllowed('[::1]:5000', '::1', 5000, '::1')).toBe(true)
  expect(isAllowed('::1', '::1', 5000, '::1')).toBe(true)
})

test.each(['169.254.169.254', '0.0.0.0', '224.0.0.1', 'fe80::1', '100.100.100.200', '::ffff:169.254.169.254'])(
  'does not allow %s even if an operator lists everything',
  (address) => {
    expect(isAllowed('0.0.0.0/0', address, 80, address)).toBe(false)
    expect(isAllowed('::/0', address, 80, address)).toBe(false)
  },
)

test.each(['', 'a b', '10.0.0.0/33', 'fd00::/129', 'host:0', 'host:65536', '[host]:1', 'http://host', '/8', '*.lan'])(
  'refuses the entry %j',
  (entry) => {
    expect(() => parseAllowedTarget(entry)).toThrow('is not a host')
  },
)
