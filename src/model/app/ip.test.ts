import { BlockList } from 'node:net'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { defaultPools, parsePools } from './ip.ts'

describe('address pools', () => {
  test.each([
    ['127.100.0.0/16', '127.100.0.1', '127.100.255.254'],
    ['10.0.0.0/30', '10.0.0.1', '10.0.0.2'],
    ['10.0.0.4/31', '10.0.0.4', '10.0.0.5'],
    ['10.0.0.7/32', '10.0.0.7', '10.0.0.7'],
    ['fd00:1::/64', 'fd00:1:0:0:0:0:0:1', 'fd00:1:0:0:ffff:ffff:ffff:fffe'],
    ['fd00::7/128', 'fd00:0:0:0:0:0:0:7', 'fd00:0:0:0:0:0:0:7'],
  ])('%s contains the addresses from %s to %s', (text, first, last) => {
    expect(parsePools([text])).toMatchObject([{ text, first, last }])
  })

  test.each([
    ['10.0.0.0', /not an address range/],
    ['10.0.0.0/', /not an address range/],
    ['10.0.0.0/x', /not an address range/],
    ['10.0.0/24', /not an address range/],
    ['10.0.0.256/24', /not an address range/],
    ['10.0.0.0/24/1', /not an address range/],
    ['::ffff:10.0.0.0/120', /not an address range/],
    ['fe80::%lo/64', /not an address range/],
    ['host/24', /not an address range/],
    ['', /not an address range/],
    ['10.0.0.1/24', /does not begin/],
    ['10.0.0.0/33', /prefix/],
    ['0.0.0.0/0', /prefix/],
    ['fd00::/129', /prefix/],
    ['::/0', /prefix/],
    ['fd00::1/64', /does not begin/],
  ])('reject %j', (text, reason) => {
    expect(() => parsePools([text])).toThrow(reason)
  })

  test('reject overlapping ranges', () => {
    expect(() => parsePools(['10.0.0.0/16', 'fd00::/64', '10.0.7.0/24'])).toThrow('10.0.7.0/24 and 10.0.0.0/16 overlap')
    expect(parsePools(['10.0.0.0/24', '10.0.1.0/24', 'fd00::/64'])).toHaveLength(3)
  })

  test('parse ranges like the kernel', () => {
    const v4 = fc.tuple(fc.nat({ max: 255 }), fc.nat({ max: 255 }), fc.integer({ min: 8, max: 16 }))
    fc.assert(
      fc.property(v4, ([a, b, bits]) => {
        const start = ((a * 256 + b) >>> (16 - bits)) << (16 - bits)
        const text = `${start >> 8}.${start & 255}.0.0/${bits}`
        const [pool] = parsePools([text])
        const list = new BlockList()
        list.addSubnet(text.split('/')[0]!, bits, 'ipv4')
        expect(list.check(pool!.first, 'ipv4') && list.check(pool!.last, 'ipv4')).toBe(true)
      }),
    )
  })

  test('reject arbitrary text with an error message', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string(),
          fc.tuple(fc.oneof(fc.ipV4(), fc.ipV6()), fc.nat(200)).map((x) => x.join('/')),
        ),
        (text) => {
          expect(poolsOrMessage(text).length).toBeGreaterThan(0)
        },
      ),
    )
  })

  test('differ between homes', () => {
    const all = Array.from({ length: 63 }, (_, home) => defaultPools(home)).flat()
    expect(parsePools(all)).toHaveLength(126)
  })
})

/** One pool, or the sentence that says what is wrong with the range. */
function poolsOrMessage(range: string): unknown[] | string {
  try {
    return parsePools([range])
  } catch (error) {
    return (error as Error).message
  }
}
