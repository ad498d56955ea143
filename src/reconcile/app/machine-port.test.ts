import { expect, test } from 'vitest'
import { describeSilentServices } from './machine-port.ts'

const warningsOf = (service: object, ...addresses: string[]) =>
  describeSilentServices(
    [{ internal_port: 8080, ...service }],
    addresses.map((address) => ({ proto: address.startsWith('[') ? 'tcp6' : 'tcp', address })),
  )

test('a service is reachable when its port is open on all addresses or on an IPv4 address', () => {
  for (const address of ['0.0.0.0:8080', '[::]:8080', '127.0.0.1:8080'])
    expect(warningsOf({}, '127.0.0.1:9000', address)).toEqual([])
})

test('a port that nothing listens on, or only over IPv6, is described', () => {
  const nothing = 'nothing listens on tcp port 8080, the internal_port of a service; requests to the service fail'
  expect(warningsOf({}, '0.0.0.0:80', '0.0.0.0:18080')).toEqual([nothing])
  for (const address of ['[::1]:8080', '[fdaa:0:1::2]:8080'])
    expect(warningsOf({}, address)).toEqual([
      expect.stringContaining(`the program listens on ${address}, and the edge`),
    ])
  expect(warningsOf({ protocol: 'udp' }, '0.0.0.0:8080')).toEqual([expect.stringContaining('udp port 8080')])
})

test('several services with one port are described once', () => {
  const service = { internal_port: 8080, ports: [{ port: 80 }] }
  expect(describeSilentServices([service, { ...service, ports: [{ port: 443 }] }], [])).toHaveLength(1)
})

test('the description stays short for a program with many sockets', () => {
  const addresses = Array.from({ length: 1000 }, (_, nth) => `[fdaa::${nth.toString(16)}]:8080`)
  expect(warningsOf({}, ...addresses)[0]!.length).toBeLessThan(200)
})
