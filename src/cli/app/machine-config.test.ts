import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { UsageError } from '../errors.ts'
import { changedConfig } from './machine-change.ts'
import { parseGuest, parseMemory, parseMount, parsePort, parseServices } from './machine-config.ts'
import { readConfig } from './machine-run.ts'

const nothing = { cpu_kind: undefined, cpus: undefined, memory_mb: undefined }

describe('sizes', () => {
  test.each([
    [undefined, {}, {}],
    [undefined, { memory_mb: 512 }, { guest: { memory_mb: 512 } }],
    ['shared-cpu-2x', {}, { guest: { cpu_kind: 'shared', cpus: 2 } }],
    ['performance-4x', { memory_mb: 16384 }, { guest: { cpu_kind: 'performance', cpus: 4, memory_mb: 16384 } }],
    ['a100', {}, { size: 'a100' }],
  ])('%s with %j', (size, wish, expected) => {
    expect(parseGuest(size, { ...nothing, ...wish })).toEqual(expected)
  })

  test.each([
    ['256', 256],
    ['512mb', 512],
    ['2GB', 2048],
  ])('%s of memory', (text, megabytes) => {
    expect(parseMemory(text)).toBe(megabytes)
    expect(() => parseMemory(`${text}x`)).toThrow('such as 512mb')
  })
})

describe('ports', () => {
  test('with the same internal port form one service', () => {
    expect(parseServices(['80:8080/tcp:http', '443:8080/tcp:tls:http', '53:53/udp', '5432'])).toEqual([
      {
        protocol: 'tcp',
        internal_port: 8080,
        ports: [
          { port: 80, handlers: ['http'] },
          { port: 443, handlers: ['tls', 'http'] },
        ],
      },
      { protocol: 'udp', internal_port: 53, ports: [{ port: 53, handlers: [] }] },
      { protocol: 'tcp', internal_port: 5432, ports: [{ port: 5432, handlers: [] }] },
    ])
  })

  test('are parsed or rejected', () => {
    fc.assert(
      fc.property(fc.string(), (text) => {
        try {
          expect(parsePort(text).port).toBeGreaterThanOrEqual(0)
        } catch (error) {
          expect(error).toBeInstanceOf(UsageError)
        }
      }),
    )
  })
})

test('mounts refer to volumes by id or by name', () => {
  expect(parseMount('vol_1:/data')).toEqual({ volume: 'vol_1', path: '/data' })
  expect(parseMount('data:/var/lib')).toEqual({ name: 'data', path: '/var/lib' })
  expect(() => parseMount('data')).toThrow(UsageError)
})

test('a configuration contains only the given options', () => {
  expect(readConfig({}, [])).toEqual({})
  const options = { env: ['A=b=c'], metadata: ['role=web'], entrypoint: '/init', restart: 'no', rm: true as const }
  expect(readConfig(options, ['serve'])).toEqual({
    env: { A: 'b=c' },
    metadata: { role: 'web' },
    init: { entrypoint: ['/init'], cmd: ['serve'] },
    restart: { policy: 'no' },
    auto_destroy: true,
  })
})

test('an update keeps the settings that are not given', () => {
  const before = {
    image: 'a',
    env: { A: '1' },
    guest: { cpu_kind: 'shared', cpus: 1, memory_mb: 1024 },
    init: { cmd: ['x'] },
  }
  expect(changedConfig(before, {}, undefined)).toEqual(before)
  expect(changedConfig(before, { env: { B: '2' } }, 'b')).toEqual({ ...before, image: 'b', env: { A: '1', B: '2' } })
  expect(changedConfig(before, { guest: { memory_mb: 512 } }, undefined).guest).toEqual({
    ...before.guest,
    memory_mb: 512,
  })
  // The previous memory may not be valid with more CPUs.
  expect(changedConfig(before, { guest: { cpus: 8 } }, undefined).guest).toEqual({ cpu_kind: 'shared', cpus: 8 })
  expect(changedConfig(before, { size: 'a100' }, undefined)).not.toHaveProperty('guest')
})

test('a new image of a machine with containers is that of its main container', () => {
  const containers = [
    { name: 'web', image: 'nginx' },
    { name: 'db', image: 'redis' },
  ]
  expect(changedConfig({ image: 'nginx', containers }, {}, 'caddy')).toMatchObject({
    image: 'caddy',
    containers: [{ name: 'web', image: 'caddy' }, containers[1]],
  })
  const named = [containers[0]!, { name: 'app', image: 'redis' }]
  expect(changedConfig({ image: 'redis', containers: named }, {}, 'caddy').containers).toEqual([
    containers[0],
    { name: 'app', image: 'caddy' },
  ])
})
