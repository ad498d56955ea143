import { describe, expect, test } from 'vitest'
import { fileError, fileKind, parseMode, renderMode, renderTime, requestedRange, resolvePath } from './file.ts'

describe('a path', () => {
  test.each([
    ['/a/b', undefined, '/a/b'],
    ['a/b', undefined, '/a/b'],
    ['a', '/home', '/home/a'],
    ['/a', '/home', '/a'],
    ['../x', '/home/me', '/home/x'],
    ['../../../..', '/home', '/'],
    ['/../etc/passwd', '/', '/etc/passwd'],
    ['a//b/./c/', '/', '/a/b/c'],
    ['x', 'relative', '/relative/x'],
    ['ünï/ж 日本.txt', '/', '/ünï/ж 日本.txt'],
    [' ', '/', '/ '],
  ])('%j from %j is %s', (path, directory, resolved) => {
    expect(resolvePath(path, directory)).toBe(resolved)
  })

  test('is rejected when it is empty, too long or contains NUL', () => {
    expect(() => resolvePath('')).toThrow('path is empty')
    expect(() => resolvePath('a\0b')).toThrow('NUL')
    expect(() => resolvePath('a', '/b\0')).toThrow('NUL')
    expect(() => resolvePath('x'.repeat(4095), '/', 'dest')).toThrow('dest is longer than 4095 bytes')
    expect(resolvePath('x'.repeat(4094))).toHaveLength(4095)
    expect(() => resolvePath('ж'.repeat(2048))).toThrow('longer')
  })
})

describe('a byte range', () => {
  test.each([
    [{}, undefined, undefined],
    [{ start: 2 }, undefined, { from: 2, length: 8 }],
    [{ end: 2 }, undefined, { from: 0, length: 3 }],
    [{ start: 2, end: 4 }, undefined, { from: 2, length: 3 }],
    [{ start: 9, end: 900 }, undefined, { from: 9, length: 1 }],
    [{}, 'bytes=0-', { from: 0, length: 10 }],
    [{}, 'bytes=3-4', { from: 3, length: 2 }],
    [{}, 'bytes=-4', { from: 6, length: 4 }],
    [{}, 'bytes=-400', { from: 0, length: 10 }],
    [{}, 'bytes=5-900', { from: 5, length: 5 }],
    // What is not one range is no range.
    [{}, 'bytes=1-2,4-5', undefined],
    [{}, 'bytes=-', undefined],
    [{}, 'bytes=5-2', undefined],
    [{}, 'lines=1-2', undefined],
    [{}, 'bytes=99999999999999999999-', undefined],
    [{ start: 1 }, 'bytes=5-', { from: 1, length: 9 }],
  ])('%j with the header %j', (query, header, range) => {
    expect(requestedRange(10, query, header)).toEqual(range)
  })

  test.each([
    [{ start: 10 }, undefined],
    [{ start: 5, end: 4 }, undefined],
    [{}, 'bytes=10-'],
    [{}, 'bytes=-0'],
  ])('%j with the header %j is rejected', (query, header) => {
    expect(() => requestedRange(10, query, header)).toThrow('the file has 10 bytes')
  })
})

test('modes have up to four significant octal digits', () => {
  expect(['0644', '644', '0o755', '4755', '04755', '0', '7'].map(parseMode)).toEqual([
    0o644, 0o644, 0o755, 0o4755, 0o4755, 0, 7,
  ])
  for (const wrong of ['', '8', '0888', 'rwx', '-1', '77777', '644 ', '1e3']) {
    expect(() => parseMode(wrong)).toThrow('octal')
  }
  expect([0o100644, 0o4755, 0].map(renderMode)).toEqual(['0644', '4755', '0000'])
})

test('the file type follows from the mode', () => {
  expect([0o100644, 0o040755, 0o120777, 0o010644, 0o140755, 0o020666].map(fileKind)).toEqual([
    'file',
    'directory',
    'symlink',
    'other',
    'other',
    'other',
  ])
})

test('times have the resolution of the filesystem', () => {
  expect(renderTime({ seconds: 1_700_000_000, nanoseconds: 0 })).toBe('2023-11-14T22:13:20Z')
  expect(renderTime({ seconds: 1_700_000_000, nanoseconds: 120_000_001 })).toBe('2023-11-14T22:13:20.120000001Z')
  expect(renderTime({ seconds: -1, nanoseconds: 500_000_000 })).toBe('1969-12-31T23:59:59.5Z')
  expect(renderTime({ seconds: 9e15, nanoseconds: 0 })).toBe('1970-01-01T00:00:00Z')
  expect(renderTime({ seconds: 9e11, nanoseconds: 0 })).toBe('1970-01-01T00:00:00Z')
})

test.each([
  ['ENOENT', 404],
  ['EEXIST', 409],
  ['ENOTEMPTY', 409],
  ['ENOTDIR', 400],
  ['EISDIR', 400],
  ['EINVAL', 400],
  ['EACCES', 403],
  ['EPERM', 403],
  ['ENOSPC', 507],
  ['EIO', 500],
])('%s is a %i', (code, status) => {
  const error = fileError(code, '/x')
  expect(error.statusCode).toBe(status)
  expect(error.details.fields).toEqual({ code, path: '/x' })
  expect(error.message).toContain('/x')
})
