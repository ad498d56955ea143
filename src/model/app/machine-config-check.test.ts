import fc from 'fast-check'
import { expect, test } from 'vitest'
import { BerthError } from '../errors.ts'
import type { MachineConfig } from './machine-config.ts'
import { checkConfig } from './machine-config-check.ts'
import { isBase64 } from './machine-config-file.ts'
import { readGuest } from './machine-guest.ts'

const rejectionOf = (config: object): string | undefined => {
  try {
    checkConfig({ image: 'nginx', ...config } as MachineConfig, false)
    return undefined
  } catch (error) {
    if (!(error instanceof BerthError) || error.statusCode !== 400) throw error
    return error.message
  }
}

test('every preset is an allowed size', () => {
  for (const cpus of [1, 2, 4, 6, 8])
    expect(readGuest(undefined, `shared-cpu-${cpus}x`)).toMatchObject({ cpus, memory_mb: cpus * 256 })
  for (const cpus of [1, 2, 4, 6, 8, 10, 12, 14, 16]) {
    expect(readGuest(undefined, `performance-${cpus}x`)).toMatchObject({ cpus, memory_mb: cpus * 2048 })
  }
})

test('max_memory_mb is limited by the size of the machine', () => {
  const guest = { cpu_kind: 'shared', cpus: 2, memory_mb: 1024 } as const
  expect(readGuest({ ...guest, max_memory_mb: 4096 }, undefined)).toEqual({ ...guest, max_memory_mb: 4096 })
  expect(readGuest({ ...guest, max_memory_mb: 0 }, undefined)).toEqual(guest)
  for (const max_memory_mb of [768, 1100, 4352])
    expect(() => readGuest({ ...guest, max_memory_mb }, undefined)).toThrow('max_memory_mb must be from 1024 to 4096')
})

test('any config is accepted or rejected with 400, and an accepted config is unchanged when it is sent again', () => {
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
      if (rejectionOf(sent) !== undefined) return
      const first = checkConfig({ image: 'nginx', ...sent } as never, false)
      expect(checkConfig(first, false)).toEqual(first)
      kept++
    }),
  )
  expect(kept).toBeGreaterThan(0)
})

test('base64 is accepted with and without padding', () => {
  fc.assert(
    fc.property(fc.uint8Array(), (bytes) => {
      const text = Buffer.from(bytes).toString('base64')
      return isBase64(text) && isBase64(text.replace(/=+$/, ''))
    }),
  )
  for (const text of ['*', 'a', 'ab\n', 'a b']) expect(isBase64(text)).toBe(false)
})

test.each([
  [{ env: { 'A=B': '' } }, 'config.env has an invalid variable name: "A=B"'],
  [{ env: { A: '\0' } }, 'config.env.A must not contain NUL characters'],
  [{ metadata: { '': 'a' } }, 'config.metadata has a key that is empty or longer than 256 characters'],
  [
    { restart: { policy: 'spot-price' } },
    'config.restart.policy spot-price is not possible here: there are no spot prices',
  ],
  [{ guest: { gpus: 1 } }, 'config.guest.gpus is not possible here: there are no GPUs'],
  [{ processes: [{}, {}] }, 'config.processes has more than one entry; run several programs with config.containers'],
  [{ processes: [{ env: { '': '' } }] }, 'config.processes.0.env has an invalid variable name: ""'],
  [
    { services: [{ internal_port: 80, ports: [{}] }] },
    'config.services.0.ports.0 must have port, or start_port and end_port',
  ],
  [
    { services: [{ internal_port: 80, concurrency: { soft_limit: 2, hard_limit: 1 } }] },
    'config.services.0.concurrency.soft_limit must not be above hard_limit',
  ],
  [
    { services: [{ internal_port: 80, checks: [{}] }] },
    'config.services.0.checks.0.type is required: tcp, http or exec',
  ],
  [{ checks: { up: { type: 'tcp' } } }, 'config.checks.up.port is required for a tcp check'],
  [{ checks: { up: { type: 'exec' } } }, 'config.checks.up.command is required for an exec check'],
  [
    { checks: { up: { type: 'http', port: 80, interval: 'often' } } },
    'config.checks.up.interval must be a duration such as 15s or 1m30s',
  ],
  [{ files: [{ guest_path: '/a' }] }, 'config.files.0 must have raw_value or secret_name'],
  [
    { files: [{ guest_path: '/..', raw_value: '' }] },
    'config.files.0.guest_path must be an absolute path below the root, without ..',
  ],
  [{ mounts: [{ path: '/data' }] }, 'config.mounts.0.volume is required'],
  [{ stop_config: { timeout: '6m' } }, 'config.stop_config.timeout must be at most 5m'],
  [{ init: { cmd: ['\0'] } }, 'config.init must not contain NUL characters'],
  [{ dns: { searches: ['a b'] } }, 'config.dns.searches.0 must be a domain'],
  [{ dns: { hostname: 'a.b' } }, 'config.dns.hostname must be 1 to 63 letters, digits and dashes'],
  [{ standbys: ['?'] }, 'config.standbys.0 must be a machine id'],
])('%j is rejected: %s', (config, message) => expect(rejectionOf(config)).toBe(message))

test('the stored config has the guest size, service defaults and durations as text', () => {
  const sent = {
    image: 'nginx',
    guest: { cpus: 2, persist_rootfs: 'always' },
    services: [{ internal_port: 80, autostop: 'stop' }],
    checks: { up: { type: 'tcp', port: 80, interval: 15_000_000_000 } },
    processes: [],
    unknown: true,
  }
  expect(checkConfig(sent as never, false)).toEqual({
    image: 'nginx',
    init: {},
    guest: { cpu_kind: 'shared', cpus: 2, memory_mb: 512 },
    rootfs: { persist: 'always' },
    services: [{ internal_port: 80, protocol: 'tcp', autostop: true }],
    checks: { up: { type: 'tcp', port: 80, interval: '15s' } },
  })
})
