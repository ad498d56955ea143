import { expect, test } from 'vitest'
import type { PlatformSettings } from '../../model/settings.ts'
import { chooseMachineRegion } from './machine.ts'

const settings = (regions: string[] | null) => ({ regions, defaultRegion: regions?.[0] ?? 'local' }) as PlatformSettings

test('the first region that the platform serves is chosen', () => {
  const chosen = (asked: string | undefined) => chooseMachineRegion(settings(['fra', 'iad']), asked)
  expect(chosen(undefined)).toBe('fra')
  expect(chosen('')).toBe('fra')
  expect(chosen('iad')).toBe('iad')
  expect(chosen('ams,iad')).toBe('iad')
  expect(chosen('ams, eu')).toBe('fra')
})

test('a region that the platform does not serve has no capacity', () => {
  expect(() => chooseMachineRegion(settings(['fra']), 'ams')).toThrow(
    expect.objectContaining({ statusCode: 422, details: { status: 'insufficient_capacity' } }),
  )
})
