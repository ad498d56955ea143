import { expect, test } from 'vitest'
import { machineIdPattern } from './app/machine.ts'
import { newMachineId, newUlid, ulidPattern } from './ids.ts'

test('ULIDs of one process increase, also within a millisecond and when the clock is set back', () => {
  const now = Date.now()
  const ids = [now, now, now, now - 1000, now + 1, now].map((time) => newUlid(time))
  expect(ids.every((id) => ulidPattern.test(id))).toBe(true)
  expect([...ids].sort()).toEqual(ids)
  expect(new Set(ids).size).toBe(ids.length)
})

test('the first ten characters are the time', () => {
  const alphabet = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'
  const at = Date.now() + 60_000
  const time = [...newUlid(at).slice(0, 10)].reduce((sum, letter) => sum * 32 + alphabet.indexOf(letter), 0)
  expect(time).toBe(at)
})

test('machine ids have fourteen hexadecimal digits', () => {
  expect(newMachineId()).toMatch(machineIdPattern)
})
