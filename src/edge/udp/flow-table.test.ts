import fc from 'fast-check'
import { expect, test } from 'vitest'
import { FlowTable, type TableFlow } from './flow-table.ts'

function open(maxFlows: number) {
  const flows = new FlowTable<TableFlow>(maxFlows)
  const ended: string[] = []
  const add = (key: string, appId = 'app', isProven = false): TableFlow => {
    const flow: TableFlow = {
      appId,
      key,
      isProven: false,
      end() {
        ended.push(key)
        flows.remove(flow)
      },
    }
    flows.add(flow)
    flow.isProven = isProven
    if (isProven) flows.touch(flow)
    return flow
  }
  return { flows, ended, add }
}

test('a flow is found by its app and key until it is removed', () => {
  const { flows, add } = open(8)
  const flow = add('a')
  expect([flows.find('app', 'a'), flows.find('other', 'a'), flows.find('app', 'b')]).toEqual([
    flow,
    undefined,
    undefined,
  ])
  flows.remove(flow)
  flows.remove(flow)
  flows.touch(flow)
  expect([flows.find('app', 'a'), flows.size, [...flows.all()]]).toEqual([undefined, 0, []])
})

test('the flow that was idle for the longest is removed first, and one app gets at most half of the table', () => {
  const { flows, ended, add } = open(6)
  const first = add('a')
  add('b')
  add('c')
  flows.touch(first)
  add('d')
  expect([ended, flows.size]).toEqual([['b'], 3])
  add('e')
  add('f')
  expect([ended, flows.size]).toEqual([['b', 'c', 'a'], 3])
})

test('proven flows are removed last', () => {
  const { ended, add } = open(6)
  add('known', 'app', true)
  for (const key of ['a', 'b', 'c', 'd']) add(key)
  expect(ended).toEqual(['a', 'b'])
  const { ended: all, add: addProven } = open(4)
  for (const key of ['x', 'y', 'z']) addProven(key, 'app', true)
  expect(all).toEqual(['x'])
})

test('a full table removes a flow of the app with the most flows', () => {
  const { flows, ended, add } = open(6)
  for (const key of ['a', 'b', 'c']) add(key, 'large')
  for (const key of ['d', 'e']) add(key, 'small')
  add('f', 'new')
  add('g', 'new')
  expect([ended, flows.size]).toEqual([['a'], 6])
})

test('the table never exceeds its limit', () => {
  const step = fc.record({
    what: fc.constantFrom('add', 'touch', 'prove', 'remove'),
    app: fc.constantFrom('a', 'b', 'c'),
    key: fc.integer({ min: 0, max: 20 }).map(String),
  })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 9 }), fc.array(step, { maxLength: 200 }), (maxFlows, steps) => {
      const { flows, add } = open(maxFlows)
      for (const { what, app, key } of steps) {
        const known = flows.find(app, key)
        if (what === 'add' && !known) add(key, app)
        if (what === 'prove' && known) known.isProven = true
        if (what === 'remove' && known) flows.remove(known)
        else if (known) flows.touch(known)
        expect(flows.size).toBeLessThanOrEqual(maxFlows)
        expect([...flows.all()].length).toBe(flows.size)
      }
    }),
  )
})
