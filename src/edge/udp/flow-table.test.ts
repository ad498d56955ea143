import fc from 'fast-check'
import { expect, test } from 'vitest'
import { FlowTable, type Listed } from './flow-table.ts'

function open(most: number) {
  const flows = new FlowTable<Listed>(most)
  const ended: string[] = []
  const add = (key: string, appId = 'app', isProven = false): Listed => {
    const flow: Listed = {
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

test('a client is found at its own app while it is known', () => {
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

test('who was silent for the longest goes first, and one app has no more than half', () => {
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

test('who has come back after an answer stays when others can go', () => {
  const { ended, add } = open(6)
  add('known', 'app', true)
  for (const key of ['a', 'b', 'c', 'd']) add(key)
  expect(ended).toEqual(['a', 'b'])
  const { ended: all, add: addProven } = open(4)
  for (const key of ['x', 'y', 'z']) addProven(key, 'app', true)
  expect(all).toEqual(['x'])
})

test('when there are too many in all, one of the app that has most goes', () => {
  const { flows, ended, add } = open(6)
  for (const key of ['a', 'b', 'c']) add(key, 'large')
  for (const key of ['d', 'e']) add(key, 'small')
  add('f', 'new')
  add('g', 'new')
  expect([ended, flows.size]).toEqual([['a'], 6])
})

test('there are never more than the most, whatever happens', () => {
  const step = fc.record({
    what: fc.constantFrom('add', 'touch', 'prove', 'remove'),
    app: fc.constantFrom('a', 'b', 'c'),
    key: fc.integer({ min: 0, max: 20 }).map(String),
  })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 9 }), fc.array(step, { maxLength: 200 }), (most, steps) => {
      const { flows, add } = open(most)
      for (const { what, app, key } of steps) {
        const known = flows.find(app, key)
        if (what === 'add' && !known) add(key, app)
        if (what === 'prove' && known) known.isProven = true
        if (what === 'remove' && known) flows.remove(known)
        else if (known) flows.touch(known)
        expect(flows.size).toBeLessThanOrEqual(most)
        expect([...flows.all()].length).toBe(flows.size)
      }
    }),
  )
})
