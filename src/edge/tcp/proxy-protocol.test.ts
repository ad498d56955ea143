import { expect, test } from 'vitest'
import { proxyHeader } from './proxy-protocol.ts'

test('the PROXY header is written in both versions and address families', () => {
  const peer = {
    address: '192.0.2.7',
    localAddress: '198.51.100.1',
    port: 443,
    remotePort: 5000,
    secure: true,
    trusted: false,
  }
  expect(String(proxyHeader(1, peer, 1))).toBe('PROXY TCP4 192.0.2.7 198.51.100.1 5000 443\r\n')
  expect(proxyHeader(2, peer, 1).toString('hex')).toBe('0d0a0d0a000d0a515549540a2111000cc0000207c6336401138801bb')
  const v6 = { ...peer, address: '2001:db8::1', localAddress: '::1' }
  expect(proxyHeader(2, v6, 1).subarray(16).toString('hex')).toBe(
    '20010db800000000000000000000000100000000000000000000000000000001138801bb',
  )
})
