import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { OpenSessions } from './open-sessions.ts'

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date', 'performance'] }))
afterEach(() => void vi.useRealTimers())

function opened() {
  const valid = new Map<string, number | null>()
  const asked: string[][] = []
  const closed: string[] = []
  const state = { isBroken: false }
  const sessions = new OpenSessions({
    async listValid(tokens) {
      asked.push(tokens)
      if (state.isBroken) throw new Error('the database is unavailable')
      return new Map([...valid].filter(([token]) => tokens.includes(token)))
    },
  })
  const add = (token: string, name = token) => sessions.add(token, () => void closed.push(name))
  return { valid, asked, closed, state, sessions, add }
}

test('a short session is never looked up', async () => {
  const { asked, add } = opened()
  add('a')()
  await vi.advanceTimersByTimeAsync(60_000)
  expect(asked).toEqual([])
})

test('a check closes the sessions of tokens that are no longer valid, and each of them once', async () => {
  const { valid, closed, sessions, add } = opened()
  valid.set('a', null).set('b', null)
  add('a', 'a1')
  add('a', 'a2')
  add('b', 'b1')
  await vi.advanceTimersByTimeAsync(200)
  expect(closed).toEqual([])
  valid.delete('a')
  sessions.check()
  sessions.check()
  await vi.advanceTimersByTimeAsync(0)
  expect(closed).toEqual(['a1', 'a2'])
})

test('a token that expires is noticed in time, without a notification', async () => {
  const { valid, closed, add } = opened()
  const expiry = Date.now() + 3_000
  valid.set('a', expiry)
  add('a')
  await vi.advanceTimersByTimeAsync(2_900)
  valid.delete('a')
  expect(closed).toEqual([])
  await vi.advanceTimersByTimeAsync(300)
  expect(closed).toEqual(['a'])
})

test('an expiry beyond the range of timers does not make it check all the time', async () => {
  const { valid, asked, add } = opened()
  valid.set('a', Date.now() + 100 * 365 * 86_400_000)
  add('a')
  await vi.advanceTimersByTimeAsync(60_000)
  expect(asked.length).toBeLessThan(15)
})

test('a lost notification is made up for, and sessions stay open while tokens cannot be looked up', async () => {
  const { valid, closed, state, add } = opened()
  valid.set('a', null)
  add('a')
  await vi.advanceTimersByTimeAsync(200)
  valid.delete('a')
  state.isBroken = true
  await vi.advanceTimersByTimeAsync(20_000)
  expect(closed).toEqual([])
  state.isBroken = false
  await vi.advanceTimersByTimeAsync(1_000)
  expect(closed).toEqual(['a'])
})

test('a change during a check is not lost', async () => {
  const { valid, closed, sessions, add } = opened()
  valid.set('a', null)
  add('a')
  sessions.check()
  valid.delete('a')
  sessions.check()
  await vi.advanceTimersByTimeAsync(0)
  expect(closed).toEqual(['a'])
})
