import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  databaseAddress,
  gatewayAddress,
  isLoopback,
  machineAddress,
  networkPrefix,
  parseMachineAddress,
  resolverAddress,
  serviceAddress,
  toHexDigits,
} from './network.ts'

describe('isLoopback', () => {
  test.each(['localhost', '127.0.0.1', '127.1.2.3', '::1', '[::1]', '::ffff:127.0.0.1', '[::ffff:127.0.0.1]'])(
    'accepts %s',
    (host) => expect(isLoopback(host)).toBe(true),
  )

  test.each([
    '',
    '0.0.0.0',
    '::',
    '10.0.0.1',
    '127.example.com',
    '127.0.0.1.example.com',
    'localhost.example.com',
    '::ffff:10.0.0.1',
    '::1:1',
    '[::1',
    'example.com',
  ])('rejects %j', (host) => expect(isLoopback(host)).toBe(false))
})

describe('private addresses', () => {
  test('derive from the home, the network and the slot', () => {
    expect(networkPrefix(0, 1)).toBe('fdaa:0:1::/48')
    expect(machineAddress(0, 1, 1023)).toBe('fdaa:0:1:0:1:0:3ff:2')
    expect(machineAddress(62, 0x12345, 7)).toBe('fdaa:3e01:2345:0:1:0:7:2')
    expect(serviceAddress(0, 1, 65_537)).toBe('fdaa:0:1:0:0:1:1:3')
    expect(databaseAddress(0, 1, 65_537, 'direct')).toBe('fdaa:0:1:0:0:1:1:5')
    expect(toHexDigits('fdaa:100::3')).toBe('fdaa0100000000000000000000000003')
    expect(gatewayAddress(0, 1)).toBe('fdaa:0:1:0:1:0:0:1')
    expect([resolverAddress(0), resolverAddress(5)]).toEqual(['fdaa::3', 'fdaa:500::3'])
  })

  test('exist only for valid network numbers and slots', () => {
    for (const number of [0, -1, 1.5, 2 ** 24]) expect(() => networkPrefix(0, number)).toThrow('not a network number')
    for (const slot of [0, 1024, -1]) expect(() => machineAddress(0, 1, slot)).toThrow('not a box slot')
  })

  test('can be parsed back into network and slot', () => {
    const number = fc.integer({ min: 1, max: 2 ** 24 - 1 })
    fc.assert(
      fc.property(fc.nat(62), number, fc.integer({ min: 1, max: 1023 }), (home, networkNumber, slot) => {
        const address = machineAddress(home, networkNumber, slot)
        expect(parseMachineAddress(home, address)).toEqual({ networkNumber, slot })
        expect(parseMachineAddress(home + 1, address)).toBeUndefined()
      }),
    )
  })

  test('are the only addresses that parse as a machine', () => {
    for (const address of ['::1', '::', 'fdaa::3', 'fe80::1', '127.0.0.1', '::ffff:127.0.0.1', gatewayAddress(0, 1)]) {
      expect(parseMachineAddress(0, address)).toBeUndefined()
    }
    fc.assert(fc.property(fc.string(), (text) => parseMachineAddress(0, text) === undefined))
  })
})
