import { expect, test } from 'vitest'
import { changesOf } from './port.ts'

const listening = (port: number, sockets: number[], pid = 7) =>
  [port, { port, address: '0.0.0.0', pid, since: 0, sockets }] as const
const changes = (before: ReturnType<typeof listening>[], now: ReturnType<typeof listening>[]) =>
  changesOf(new Map(before), new Map(now)).map(({ type, port, pid }) => `${type} ${port} by ${pid}`)

test('reports opened and closed ports once', () => {
  expect(changes([], [listening(80, [1])])).toEqual(['port_opened 80 by 7'])
  expect(changes([listening(80, [1])], [listening(80, [1])])).toEqual([])
  expect(changes([listening(80, [1])], [])).toEqual(['port_closed 80 by 7'])
})

test('reports a replaced listener as closed and opened', () => {
  const [before, now] = [[listening(80, [1], 7)], [listening(80, [2], 8)]]
  expect(changes(before, now)).toEqual(['port_closed 80 by 7', 'port_opened 80 by 8'])
})

test('treats several sockets on one port as one listener while one of them stays', () => {
  expect(changes([listening(80, [1, 2])], [listening(80, [2, 3])])).toEqual([])
})
