import { expect, test } from 'vitest'
import { findPlan, plans } from './plan.ts'

test('finds a plan by name, ignoring case', () => {
  expect(findPlan('performance')?.name).toBe('Performance')
  expect(findPlan('BASIC')?.name).toBe('basic')
  expect(findPlan('huge')).toBeUndefined()
})

test('has the documented sizes and connection limits', () => {
  const rows = plans.map((plan) => Object.values(plan).join(' '))
  expect(rows).toEqual([
    'basic shared 2 1024 200 50 10',
    'starter shared 2 2048 200 50 10',
    'launch performance 2 8192 500 150 30',
    'scale performance 4 32768 1000 300 50',
    'Performance performance 8 65536 1000 300 50',
  ])
})
