import fc from 'fast-check'
import { expect, test } from 'vitest'
import { BerthError } from './errors.ts'
import { formatImageReference, type ImageReference, parseImageReference } from './image.ts'

const digest = `sha256:${'0123456789abcdef'.repeat(4)}`

test.each<[string, ImageReference]>([
  ['nginx', { kind: 'registry', registry: 'docker.io', repository: 'library/nginx', tag: 'latest' }],
  ['nginx:1.25', { kind: 'registry', registry: 'docker.io', repository: 'library/nginx', tag: '1.25' }],
  ['team/app', { kind: 'registry', registry: 'docker.io', repository: 'team/app', tag: 'latest' }],
  ['docker.io/nginx', { kind: 'registry', registry: 'docker.io', repository: 'library/nginx', tag: 'latest' }],
  ['index.docker.io/a/b', { kind: 'registry', registry: 'docker.io', repository: 'a/b', tag: 'latest' }],
  ['localhost/a', { kind: 'registry', registry: 'localhost', repository: 'a', tag: 'latest' }],
  ['127.0.0.1:5000/a/b/c:v', { kind: 'registry', registry: '127.0.0.1:5000', repository: 'a/b/c', tag: 'v' }],
  ['[::1]:5000/a', { kind: 'registry', registry: '[::1]:5000', repository: 'a', tag: 'latest' }],
  ['Registry.Example.com/a', { kind: 'registry', registry: 'registry.example.com', repository: 'a', tag: 'latest' }],
  [`nginx@${digest}`, { kind: 'registry', registry: 'docker.io', repository: 'library/nginx', digest }],
  [`a.b/c:d@${digest}`, { kind: 'registry', registry: 'a.b', repository: 'c', tag: 'd', digest }],
  ['oci:/var/images', { kind: 'layout', directory: '/var/images' }],
  ['oci:/var/images:v1', { kind: 'layout', directory: '/var/images', tag: 'v1' }],
  ['oci:/var/a:b/images', { kind: 'layout', directory: '/var/a:b/images' }],
  ['tar:/srv/root.tar.gz', { kind: 'tar', file: '/srv/root.tar.gz' }],
])('parses %s', (text, reference) => {
  expect(parseImageReference(text, true)).toEqual(reference)
})

test.each([
  ...['', ' ', 'UPPER', 'a b', 'a//b', '/a', 'a/', 'a:', 'a:-x', '-a', 'a@', 'a@sha256:12', `a@${digest}@${digest}`],
  ...[
    'https://example.com/a',
    'host:99999/a',
    'host:/a',
    'host:0/a',
    '..',
    '../a',
    'a/../b',
    './a',
    'a.b/..',
    'x_.b/c',
  ],
  ...['oci:relative/dir', 'tar:relative/file', 'oci:/dir:bad tag', 'tar:/a\0b', 'nginx\n', `a@${digest.toUpperCase()}`],
  `${'a'.repeat(256)}`,
])('rejects %j', (text) => {
  expect(() => parseImageReference(text, true)).toThrow(/config\.image/)
})

test('rejects host paths unless they are allowed', () => {
  for (const text of ['oci:/var/images', 'oci:/var/images:v1', 'tar:/etc/shadow', 'oci:../x', 'tar:x/y'])
    expect(() => parseImageReference(text, false)).toThrow(/config\.image/)
})

test('parses arbitrary text or rejects it with a reason, and never yields a host path', () => {
  const words = fc.constantFrom(
    'oci:',
    'tar:',
    '/',
    '..',
    ':',
    '@',
    'a',
    'b.c',
    'localhost',
    '[::1]',
    digest,
    '\0',
    'é',
  )
  const text = fc.oneof(
    fc.string(),
    fc.array(words, { maxLength: 8 }).map((parts) => parts.join('')),
  )
  fc.assert(
    fc.property(text, (given) => {
      try {
        expect(parseImageReference(given, false).kind).toBe('registry')
      } catch (error) {
        expect(error).toBeInstanceOf(BerthError)
        expect((error as BerthError).message).toMatch(/^config\.image/)
      }
    }),
    { numRuns: 5000 },
  )
})

test('parses what it formats', () => {
  const part = fc.stringMatching(/^[a-z0-9]{1,8}([._-][a-z0-9]{1,8}){0,2}$/)
  const reference = fc.record(
    {
      kind: fc.constant('registry' as const),
      registry: fc.constantFrom('docker.io', 'localhost', 'a.example:5000', '[fd00::1]:443'),
      repository: fc.array(part, { minLength: 2, maxLength: 4 }).map((parts) => parts.join('/')),
      tag: fc.stringMatching(/^\w[\w.-]{0,20}$/),
      digest: fc.constant(digest),
    },
    { requiredKeys: ['kind', 'registry', 'repository', 'tag'] },
  )
  fc.assert(
    fc.property(reference, (given) => {
      expect(parseImageReference(formatImageReference(given), false)).toEqual(given)
    }),
  )
})
