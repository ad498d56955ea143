import fc from 'fast-check'
import { expect, test } from 'vitest'
import { BerthError } from '../errors.ts'
import type { MachineConfig } from './machine-config.ts'
import { checkConfig, isBase64, millisOf } from './machine-config-check.ts'
import { readGuest } from './machine-guest.ts'

const refusalOf = (config: object): string | undefined => {
  try {
    checkConfig({ image: 'nginx', ...config } as MachineConfig, false)
    return undefined
  } catch (error) {
    if (!(error instanceof BerthError) || error.statusCode !== 400) throw error
    return error.message
  }
}

test('every preset is a size that is allowed', () => {
  for (const cpus of [1, 2, 4, 6, 8])
    expect(readGuest(undefined, `shared-cpu-${cpus}x`)).toMatchObject({ cpus, memory_mb: cpus * 256 })
  for (const cpus of [1, 2, 4, 6, 8, 10, 12, 14, 16]) {
    expect(readGuest(undefined, `performance-${cpus}x`)).toMatchObject({ cpus, memory_mb: cpus * 2048 })
  }
})

test('memory may be given while it runs up to what a machine of its size can have', () => {
  const guest = { cpu_kind: 'shared', cpus: 2, memory_mb: 1024 } as const
  expect(readGuest({ ...guest, max_memory_mb: 4096 }, undefined)).toEqual({ ...guest, max_memory_mb: 4096 })
  expect(readGuest({ ...guest, max_memory_mb: 0 }, undefined)).toEqual(guest)
  for (const max_memory_mb of [768, 1100, 4352])
    expect(() => readGuest({ ...guest, max_memory_mb }, undefined)).toThrow('max_memory_mb must be from 1024 to 4096')
})

test('whatever is sent is kept or refused with 400, and what is kept is kept again', () => {
  const value = fc.oneof(fc.string(), fc.integer(), fc.constantFrom('/a', '15s', 'SIGTERM', '..', '\0', ''))
  const config = fc.record(
    {
      env: fc.dictionary(fc.string(), fc.string()),
      metadata: fc.dictionary(fc.string(), fc.string()),
      guest: fc.record(
        { cpus: fc.integer(), memory_mb: fc.integer(), max_memory_mb: fc.integer() },
        { requiredKeys: [] },
      ),
      size: fc.string(),
      files: fc.array(fc.record({ guest_path: fc.string(), raw_value: fc.string() })),
      mounts: fc.array(fc.record({ path: fc.string(), volume: fc.string() })),
      stop_config: fc.record({ signal: fc.string(), timeout: value }),
      checks: fc.dictionary(
        fc.string(),
        fc.record({
          type: fc.constantFrom('tcp', 'http', 'exec'),
          port: fc.integer(),
          interval: value,
          path: fc.string(),
        }),
      ),
      services: fc.array(
        fc.record({ internal_port: fc.integer(), autostop: fc.constantFrom(true, false, 'off', 'stop', 'suspend') }),
      ),
      gpus: fc.integer(),
    },
    { requiredKeys: [] },
  )
  const likely = fc.record(
    {
      env: fc.dictionary(fc.stringMatching(/^[A-Z]{1,8}$/), fc.string()),
      metadata: fc.dictionary(fc.stringMatching(/^[a-z]{1,8}$/), fc.stringMatching(/^\w{0,8}$/)),
      guest: fc.record({ cpus: fc.constantFrom(1, 2), memory_mb: fc.constantFrom(512, 1024) }),
      stop_config: fc.record({ signal: fc.constantFrom('SIGTERM', 'SIGINT'), timeout: fc.constantFrom('5s', 1e9) }),
      services: fc.array(fc.record({ internal_port: fc.integer({ min: 1, max: 65_535 }) })),
    },
    { requiredKeys: [] },
  )
  let kept = 0
  fc.assert(
    fc.property(fc.oneof(config, likely), (sent) => {
      if (refusalOf(sent) !== undefined) return
      const first = checkConfig({ image: 'nginx', ...sent } as never, false)
      expect(checkConfig(first, false)).toEqual(first)
      kept++
    }),
  )
  expect(kept).toBeGreaterThan(0)
})

test('base64 is what Node reads whole', () => {
  fc.assert(
    fc.property(fc.uint8Array(), (bytes) => {
      const text = Buffer.from(bytes).toString('base64')
      return isBase64(text) && isBase64(text.replace(/=+$/, ''))
    }),
  )
  for (const text of ['*', 'a', 'ab\n', 'a b']) expect(isBase64(text)).toBe(false)
})

test('durations are text, or nanoseconds', () => {
  expect(millisOf('1m30s')).toBe(90_000)
  expect(millisOf(15_000_000_000)).toBe(15_000)
  expect(millisOf(undefined)).toBeUndefined()
})
