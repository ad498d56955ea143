import fc from 'fast-check'
import { expect, test } from 'vitest'
import { TrustedProxies } from '../tcp/trusted-proxy.ts'
import { isSecureRequest, readOrigin } from './client-origin.ts'
import { requestText } from './forwarded-head.ts'
import { readRequestHead } from './message.ts'

const proxies = new TrustedProxies(['10.0.0.0/8', '192.0.2.1', 'fd00::/16'])
const options = { id: 'x-1', withoutAuthorization: false, keepAlive: true, added: '' }

const head = (...lines: string[]) => readRequestHead(['GET / HTTP/1.1', 'Host: a.test', ...lines].join('\r\n'))
const peer = (address: string, secure = false) => {
  return { address, secure, port: 80, trusted: proxies.has(address), proxies }
}

test.each<[string, string[], string]>([
  ['198.51.100.7', [], '198.51.100.7'],
  ['198.51.100.7', ['1.1.1.1'], '198.51.100.7'],
  ['127.0.0.1', ['1.1.1.1'], '127.0.0.1'],
  ['10.0.0.1', [], '10.0.0.1'],
  ['10.0.0.1', ['1.1.1.1'], '1.1.1.1'],
  ['10.0.0.1', ['6.6.6.6, 1.1.1.1'], '1.1.1.1'],
  ['10.0.0.1', ['6.6.6.6', '1.1.1.1'], '1.1.1.1'],
  ['10.0.0.1', ['6.6.6.6, 1.1.1.1, 10.2.3.4'], '1.1.1.1'],
  ['192.0.2.1', ['6.6.6.6, 1.1.1.1, fd00::1, 10.0.0.9'], '1.1.1.1'],
  ['192.0.2.1', ['10.0.0.1, 10.0.0.2'], '10.0.0.1'],
  ['192.0.2.2', ['1.1.1.1'], '192.0.2.2'],
  ['fd00::5', ['2001:db8::1'], '2001:db8::1'],
  ['10.0.0.1', ['[2001:db8::1]:443'], '2001:db8::1'],
  ['10.0.0.1', ['1.1.1.1:5555'], '1.1.1.1'],
  ['10.0.0.1', ['::ffff:1.1.1.1'], '1.1.1.1'],
  ['10.0.0.1', ['6.6.6.6, ::ffff:10.0.0.3'], '6.6.6.6'],
  ['10.0.0.1', ['6.6.6.6, unknown'], '10.0.0.1'],
  ['10.0.0.1', ['6.6.6.6, \xa01.1.1.1'], '10.0.0.1'],
  ['10.0.0.1', ['6.6.6.6, 10.0.0.2, _hidden, 10.0.0.3'], '10.0.0.3'],
  ['10.0.0.1', ['6.6.6.6,, \t'], '6.6.6.6'],
  ['10.0.0.1', ['fe80::1%eth0'], '10.0.0.1'],
  ['10.0.0.1', ['01.1.1.1'], '10.0.0.1'],
  ['10.0.0.1', [''], '10.0.0.1'],
])('from %s with X-Forwarded-For %j the client is %s', (address, received, client) => {
  const request = head(...received.map((value) => `X-Forwarded-For: ${value}`))
  expect(readOrigin(request, peer(address)).client).toBe(client)
})

test('a client cannot choose its address, whatever it sends, as long as the proxy appends the real one', () => {
  const hop = fc.oneof(
    fc.constantFrom(
      '10.0.0.1',
      'fd00::1',
      'unknown',
      '',
      ' ',
      ',',
      '\xa0',
      '"',
      '[::1]:1',
      '1.1.1.1:1',
      '::ffff:10.0.0.1',
    ),
    fc.ipV4(),
    fc.ipV6(),
  )
  fc.assert(
    fc.property(
      fc.array(hop),
      fc.array(fc.constantFrom('10.0.0.8', 'fd00::8'), { maxLength: 3 }),
      (invented, passed) => {
        const chain = [...invented, '198.51.100.7', ...passed].join(', ')
        const origin = readOrigin(head(`X-Forwarded-For: ${chain}`), peer('10.0.0.1'))
        expect(origin.client).toBe('198.51.100.7')
      },
    ),
  )
})

test.each<[string, string[], object]>([
  ['198.51.100.7', ['X-Forwarded-Proto: https'], { proto: 'http' }],
  ['10.0.0.1', ['X-Forwarded-Proto: https'], { proto: 'https' }],
  ['10.0.0.1', ['X-Forwarded-Proto: HTTPS'], { proto: 'https' }],
  ['10.0.0.1', ['X-Forwarded-Proto: https', 'X-Forwarded-Proto: http'], { proto: 'http' }],
  ['10.0.0.1', ['X-Forwarded-Proto: http, https'], { proto: 'https' }],
  ['10.0.0.1', ['X-Forwarded-Proto: ftp'], { proto: 'http' }],
  ['10.0.0.1', ['X-Forwarded-Proto: \xa0https'], { proto: 'http' }],
  ['10.0.0.1', ['X-Forwarded-Port: 8443'], { port: 8443 }],
  ['10.0.0.1', ['X-Forwarded-Port: 99999'], { port: 80 }],
  ['10.0.0.1', ['X-Forwarded-Port: 1e3'], { port: 80 }],
  ['10.0.0.1', ['X-Forwarded-Port: 0x50'], { port: 80 }],
  ['10.0.0.1', ['X-Forwarded-Port: +443'], { port: 80 }],
  ['198.51.100.7', ['X-Forwarded-Port: 8443'], { port: 80 }],
  ['10.0.0.1', ['X-Forwarded-Host: shop.example.com'], { host: 'shop.example.com' }],
  ['10.0.0.1', ['X-Forwarded-Host: a b'], { host: 'a.test' }],
  ['198.51.100.7', ['X-Forwarded-Host: shop.example.com'], { host: 'a.test' }],
])('from %s with %j the origin has %j', (address, lines, expected) => {
  expect(readOrigin(head(...lines), peer(address))).toMatchObject(expected)
  if ('proto' in expected) {
    expect(isSecureRequest(head(...lines), peer(address))).toBe(expected.proto === 'https')
  }
})

test('a proxy that is trusted may send further fields about the client, and no one may send those of the edge', () => {
  const lines = ['Forwarded: for=1.1.1.1', 'X-Forwarded-Prefix: /shop', 'Fly-Client-IP: 1.1.1.1', 'Fly-Region: ams']
  const trusted = requestText(head(...lines), peer('10.0.0.1'), options)
  expect(trusted).toContain('\r\nForwarded: for=1.1.1.1\r\nX-Forwarded-Prefix: /shop\r\n')
  const stranger = requestText(head(...lines), peer('198.51.100.7'), options)
  for (const name of ['Forwarded:', 'X-Forwarded-Prefix', 'ams']) expect(stranger).not.toContain(`\n${name}`)
  expect(stranger.match(/Fly-Client-IP/gi)).toHaveLength(1)
  expect(trusted.match(/Fly-Client-IP/gi)).toHaveLength(1)
})

test('addresses, ranges and other texts', () => {
  for (const address of ['10.255.0.1', '192.0.2.1', 'fd00:0:0::9']) expect(proxies.has(address)).toBe(true)
  for (const address of ['11.0.0.1', '192.0.2.2', 'fd01::1', '', 'unknown', '127.0.0.1', '::1', 'fe80::1%lo'])
    expect(proxies.has(address)).toBe(false)
})
