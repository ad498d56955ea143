import { expect, test } from 'vitest'
import { fitsRegion, isRegionAlias } from './region.ts'

test('an alias matches the regions of its continent', () => {
  const fitting = (asked: string) =>
    ['ams', 'gru', 'iad', 'jnb', 'nrt', 'yyz', 'own'].filter((at) => fitsRegion(at, asked))
  expect(fitting('eu')).toEqual(['ams'])
  expect(fitting('sa')).toEqual(['gru'])
  expect(fitting('us')).toEqual(['iad'])
  expect(fitting('usa')).toEqual(['iad'])
  expect(fitting('na')).toEqual(['iad', 'yyz'])
  expect(fitting('apac')).toEqual(['nrt'])
  expect(fitting('any')).toHaveLength(7)
  expect(fitting('own')).toEqual(['own'])
  expect(fitting('constructor')).toEqual([])
  expect(['eu', 'any', 'ams', 'constructor'].filter(isRegionAlias)).toEqual(['eu', 'any'])
})
