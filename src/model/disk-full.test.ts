import { expect, test } from 'vitest'
import { isDiskFull } from './disk-full.ts'

test.each([
  "create the data directory: ENOSPC: no space left on device, mkdir '/x'",
  'EDQUOT: disk quota exceeded, write',
  "cp: error writing '/x': No space left on device",
  'could not extend file "base/5/1259": Disk quota exceeded',
])('recognizes %s', (text) => {
  expect(isDiskFull(text)).toBe(true)
})

test.each(['', 'EIO: input/output error, write', 'the disk of 10 GB is 95 % full'])('ignores %j', (text) => {
  expect(isDiskFull(text)).toBe(false)
})
