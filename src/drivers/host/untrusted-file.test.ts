import { execFileSync, spawn } from 'node:child_process'
import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import {
  inspectUntrustedFile,
  listUntrustedDirectory,
  openUntrustedFile,
  readUntrustedFile,
  withUntrustedDirectory,
} from './untrusted-file.ts'

let root: string

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'berth-untrusted-'))
  mkdirSync(join(root, 'a/b'), { recursive: true })
  writeFileSync(join(root, 'a/b/file'), 'content')
})

afterEach(() => rmSync(root, { recursive: true, force: true }))

const openDescriptors = () => readdirSync('/proc/self/fd').length

test('reads a regular file up to the limit', () => {
  expect(readUntrustedFile(root, 'a/b/file', 7)?.toString()).toBe('content')
  expect(readUntrustedFile(root, 'a/b/file', 6)).toBeUndefined()
  expect(readUntrustedFile(root, 'a/b/other', 7)).toBeUndefined()
  expect(readUntrustedFile(root, 'a/none/file', 7)).toBeUndefined()
  expect(readUntrustedFile(join(root, 'none'), 'file', 7)).toBeUndefined()
})

test('reads nothing from what is not a regular file, and does not block', async () => {
  symlinkSync('/etc/passwd', join(root, 'link'))
  symlinkSync('/nonexistent/file', join(root, 'dangling'))
  symlinkSync('loop', join(root, 'loop'))
  execFileSync('mkfifo', [join(root, 'pipe')])
  writeFileSync(join(root, 'sparse'), '')
  truncateSync(join(root, 'sparse'), 2 ** 40)
  const server = createServer().listen(join(root, 'socket'))
  await new Promise((resolve) => server.once('listening', resolve))
  const before = openDescriptors()
  for (const name of ['link', 'dangling', 'loop', 'pipe', 'sparse', 'socket', 'a', 'link/x', 'pipe/x', 'x'.repeat(300)])
    expect(readUntrustedFile(root, name, 1000), name).toBeUndefined()
  expect(openDescriptors()).toBe(before)
  await new Promise((resolve) => server.close(resolve))
})

test.runIf(process.getuid?.() === 0)('does not open devices', () => {
  // Reading /dev/zero would never end.
  execFileSync('mknod', [join(root, 'device'), 'c', '1', '5'])
  expect(readUntrustedFile(root, 'device', 1000)).toBeUndefined()
  expect(openUntrustedFile(root, 'device')).toBeUndefined()
})

test('does not wait for the holder of a lease', async () => {
  // F_SETLEASE with F_WRLCK: another open would wait for 45 s.
  const program = `open(my $file, '+<', $ARGV[0]) or die; $SIG{IO} = 'IGNORE'; fcntl($file, 1024, 1) or die "lease: $!";
    $| = 1; print 'held'; sleep 30`
  const holder = spawn('perl', ['-e', program, join(root, 'a/b/file')], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await new Promise((resolve) => holder.stdout.once('data', resolve))
    const startedAt = performance.now()
    expect(readUntrustedFile(root, 'a/b/file', 1000)).toBeUndefined()
    expect(performance.now() - startedAt).toBeLessThan(1000)
  } finally {
    holder.kill('SIGKILL')
  }
})

test('follows no directory that is a link', () => {
  mkdirSync(join(root, 'real'))
  writeFileSync(join(root, 'real/file'), 'secret')
  symlinkSync('../real', join(root, 'a/link'))
  expect(readUntrustedFile(root, 'a/link/file', 100)).toBeUndefined()
  expect(listUntrustedDirectory(root, 'a/link', 10)).toEqual([])
  expect(inspectUntrustedFile(root, 'a/link/file')).toBeUndefined()
  expect(inspectUntrustedFile(root, 'a/link')?.isSymbolicLink()).toBe(true)
  expect(inspectUntrustedFile(root, 'real/file')?.size).toBe(6)
})

test('rejects paths that could leave the root', () => {
  for (const path of ['../x', 'a/../b', '/etc/passwd', '', 'a//b', './a', 'a\0b'])
    expect(() => readUntrustedFile(root, path, 10), path).toThrow(/not a path below/)
})

test('lists a bounded number of names', () => {
  for (let count = 0; count < 20; count++) linkSync(join(root, 'a/b/file'), join(root, `a/b/${count}`))
  expect(listUntrustedDirectory(root, 'a/b', 5)).toHaveLength(5)
  expect(listUntrustedDirectory(root, 'a/b', 100)).toHaveLength(21)
  expect(listUntrustedDirectory(root, 'a/b/file', 100)).toEqual([])
})

test('keeps referring to a directory that is replaced', () => {
  withUntrustedDirectory(root, 'a/b', (directory) => {
    renameSync(join(root, 'a/b'), join(root, 'a/moved'))
    symlinkSync('/etc', join(root, 'a/b'))
    writeFileSync(`${directory}/new`, 'x')
  })
  expect(readdirSync(join(root, 'a/moved')).sort()).toEqual(['file', 'new'])
  expect(withUntrustedDirectory(root, 'a/b', () => true)).toBeUndefined()
})
