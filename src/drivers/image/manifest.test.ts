import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { ImageSource } from './blob.ts'
import { readConfig } from './config.ts'
import { ImageError } from './driver.ts'
import { defaultImageLimits as limits } from './limits.ts'
import { planImage, resolveManifest } from './manifest.ts'
import { choosePlatform } from './platform.ts'

const architecture = process.arch === 'arm64' ? 'arm64' : 'amd64'
const signal = new AbortController().signal

function digestOf(content: Buffer): string {
  return `sha256:${createHash('sha256').update(content).digest('hex')}`
}

function entry(name: string, platform?: Record<string, unknown>) {
  return { digest: digestOf(Buffer.from(name)), size: 1, ...(platform && { platform }) }
}

test('prefers the platform without a variant, and never chooses another platform', () => {
  const plain = entry('plain', { os: 'linux', architecture })
  const entries = [
    entry('other', { os: 'linux', architecture: 's390x' }),
    entry('system', { os: 'windows', architecture }),
    entry('new', { os: 'linux', architecture, variant: 'v9' }),
    entry('variant', { os: 'linux', architecture, variant: 'v8' }),
  ]
  expect(choosePlatform([...entries, plain], limits).digest).toBe(plain.digest)
  expect(choosePlatform(entries, limits).digest).toBe(entries[3]!.digest)
  expect(() => choosePlatform(entries.slice(0, 3), limits)).toThrow(`linux/${architecture}`)
  expect(choosePlatform([entry('silent')], limits).digest).toBe(entry('silent').digest)
})

test('reads configurations with missing fields', () => {
  expect(readConfig({})).toEqual({
    entrypoint: [],
    cmd: [],
    env: {},
    user: '',
    workingDir: '',
    exposedPorts: [],
    labels: {},
  })
  const config = {
    Entrypoint: null,
    Cmd: ['a'],
    Env: ['A=b=c', 'EMPTY', '=x', '__proto__=y'],
    Labels: { a: 'b', c: 1 },
    StopSignal: '',
  }
  expect(readConfig({ config })).toMatchObject({ entrypoint: [], cmd: ['a'], labels: { a: 'b' } })
  expect(Object.entries(readConfig({ config }).env)).toEqual([
    ['A', 'b=c'],
    ['EMPTY', ''],
    ['__proto__', 'y'],
  ])
  expect(() => readConfig({ config: { Cmd: ['a\0b'] } })).toThrow(ImageError)
})

test('accepts any manifest and configuration or refuses it with an ImageError', async () => {
  const value = fc.jsonValue({ maxDepth: 3 })
  const known = fc.constantFrom(
    2,
    'linux',
    architecture,
    digestOf(Buffer.from('')),
    'application/vnd.oci.image.layer.v1.tar',
  )
  const field = fc.oneof({ weight: 2, arbitrary: known }, value)
  const descriptor = fc.oneof(fc.record({ digest: field, size: field, mediaType: field }, { requiredKeys: [] }), value)
  const manifest = fc.oneof(
    fc.record({ schemaVersion: fc.constant(2), layers: fc.oneof(fc.array(descriptor), value) }, { requiredKeys: [] }),
    fc.record({
      manifests: fc.oneof(
        fc.array(fc.record({ digest: field, size: field, platform: fc.record({ os: field, architecture: field }) })),
        value,
      ),
    }),
    value,
  )
  const config = fc.oneof(
    fc.record(
      {
        os: field,
        architecture: field,
        rootfs: fc.oneof(fc.record({ diff_ids: fc.oneof(fc.array(field), value) }), value),
        config: fc.oneof(fc.record({ Env: fc.oneof(fc.array(field), value), Cmd: value }), value),
      },
      { requiredKeys: [] },
    ),
    value,
  )
  await fc.assert(
    fc.asyncProperty(manifest, config, async (given, givenConfig) => {
      const configBytes = Buffer.from(JSON.stringify(givenConfig))
      const described = { digest: digestOf(configBytes), size: configBytes.length }
      const isPlain = typeof given === 'object' && given !== null && 'layers' in given
      const bytes = Buffer.from(JSON.stringify(isPlain ? { ...given, config: described } : given))
      const source: ImageSource = {
        origin: 'registry.test',
        mayReadBlob: async () => true,
        readManifest: async () => bytes,
        async *openBlob() {
          yield configBytes
        },
        async close() {},
      }
      try {
        const found = await resolveManifest(source, undefined, limits, signal)
        expect((await planImage(source, found, limits, signal)).digest).toBe(digestOf(bytes))
      } catch (error) {
        expect(error).toBeInstanceOf(ImageError)
      }
    }),
    { numRuns: 1500 },
  )
})
