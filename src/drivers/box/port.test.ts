import { expect, test } from 'vitest'
import { parseListeners } from './port.ts'

const head = '  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n'
const row = (local: string, state: string, inode: number) =>
  `   0: ${local} 00000000:0000 ${state} 00000000:00000000 00:00000000 00000000     0        0 ${inode} 1 0 100 0 0 10 0\n`

test('reads listeners from the socket table and skips connections', () => {
  const table = head + row('0100007F:1F90', '0A', 11) + row('00000000:0050', '0A', 12) + row('0100007F:1F90', '01', 13)
  expect(parseListeners(table)).toEqual([
    { port: 8080, address: '127.0.0.1', socket: 11 },
    { port: 80, address: '0.0.0.0', socket: 12 },
  ])
})

test('formats IPv6 addresses in their short form', () => {
  const table =
    head +
    row('00000000000000000000000000000000:1F90', '0A', 1) +
    row('00000000000000000000000001000000:1F90', '0A', 2) +
    row('0000000000000000FFFF00000100007F:1F90', '0A', 3) +
    row('B80D0120000000000000000001000000:1F90', '0A', 4)
  expect(parseListeners(table).map((each) => each.address)).toEqual(['::', '::1', '127.0.0.1', '2001:db8::1'])
})

test.each(['', '\n', head, `${head}half a li`, `${head}a b c 0A`])('finds no listeners in %j', (table) => {
  expect(parseListeners(table)).toEqual([])
})
