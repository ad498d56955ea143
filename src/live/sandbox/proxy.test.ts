import { expect, test } from 'vitest'
import { targetsOf } from './proxy.ts'

const loopback = ['v4:7f000001', 'v6:00000000000000000000000000000001']

test.each([
  ['', loopback],
  ['localhost', loopback],
  ['127.0.0.1', loopback],
  ['::1', loopback],
  ['10.0.200.1', ['v4:0a00c801']],
  ['0.0.0.0', ['v4:00000000']],
  ['2001:db8::ff', ['v6:20010db80000000000000000000000ff']],
  ['[fe80::1]', ['v6:fe800000000000000000000000000001']],
  ['::ffff:127.0.0.1', ['v6:00000000000000000000ffff7f000001']],
  ['::', ['v6:00000000000000000000000000000000']],
  ['db.internal', ['name:db.internal']],
])('dials %j as %j', (host, targets) => {
  expect(targetsOf(host)).toEqual(targets)
})

test.each(['a b', 'a/b', 'a\0b', '-x', 'fe80::1%eth0', `${'x'.repeat(300)}`, 'a:b', '../x', 'ж'])(
  'rejects %j',
  (host) => {
    expect(() => targetsOf(host)).toThrow('host is not an address or a name')
  },
)
