import { expect, test } from 'vitest'
import { compareVersions, judgeVersion } from './version.ts'

test.each([
  ['2.11.3', '2.11', 2, 0],
  ['2.9', '2.11', 2, -2],
  ['17.5', '17.10', 1, 0],
  ['2', '1.24', 2, 1],
  ['1.24', '1.24.1', 3, -1],
])('%s compares with %s in %i numbers as %i', (a, b, numbers, order) => {
  expect(Math.sign(compareVersions(a, b, numbers))).toBe(Math.sign(order))
})

test.each([
  ['2.11.3.2', 'ok', undefined, undefined],
  ['2.12.0.1', 'ok', undefined, undefined],
  [undefined, 'ok', undefined, undefined],
  ['2.10.0.3', 'warning', 'older', 'upgrade it'],
  ['2.14', 'warning', 'newer', 'make test, which tries this version'],
])('version %s of s6 is %s', (version, level, how, fix) => {
  const finding = judgeVersion('s6', version, 'found', 'upgrade it')
  expect(finding).toMatchObject({ level, found: 'found', tested: ['2.11', '2.13'] })
  expect(finding.version).toBe(version)
  expect(finding.fix).toBe(fix)
  if (how) expect(finding.cost).toContain(`Berth is tested with s6 2.11 and 2.13. This one is ${how}`)
})
