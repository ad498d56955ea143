import { execFileSync, spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { safePath, unpack } from './tar.ts'

let work: string

beforeEach(() => {
  work = mkdtempSync(join(tmpdir(), 'berth-tar-'))
  mkdirSync(join(work, 'from/deep'), { recursive: true })
})

afterEach(() => rmSync(work, { recursive: true, force: true }))

const at = (path: string) => join(work, path)

function pack(...options: string[]): AsyncIterable<Buffer> {
  return spawn('tar', ['-cf', '-', ...options, '-C', at('from'), '.'], { stdio: ['ignore', 'pipe', 'ignore'] }).stdout
}

async function* chunked(data: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let i = 0; i < data.length; i += size) yield data.subarray(i, i + size)
}

interface Forged {
  path: string
  kind?: string
  target?: string
  mode?: number
  contents?: string
}

/** Builds a malicious archive. */
function forge(...entries: Forged[]): Buffer {
  const blocks = entries.flatMap(({ path, kind = '0', target = '', mode = 0o644, contents = '' }) => {
    const header = Buffer.alloc(512)
    header.write(path, 0)
    header.write(`${mode.toString(8).padStart(7, '0')}\0`, 100)
    header.write(`${contents.length.toString(8).padStart(11, '0')}\0`, 124)
    header.write('00000000000\0', 136)
    header.write('        ', 148)
    header.write(kind, 156)
    header.write(target, 157)
    header.write(
      `${header
        .reduce((sum, byte) => sum + byte, 0)
        .toString(8)
        .padStart(6, '0')}\0 `,
      148,
    )
    const body = Buffer.alloc(Math.ceil(contents.length / 512) * 512)
    body.write(contents)
    return [header, body]
  })
  return Buffer.concat([...blocks, Buffer.alloc(1024)])
}

const unpackForged = (...entries: Forged[]) => unpack(chunked(forge(...entries), 1000), at('to'))

describe('an honest archive', () => {
  test.each(['gnu', 'pax', 'ustar'])('of the form %s comes out as it went in', async (form) => {
    const long = `deep/${form === 'ustar' ? 'l'.repeat(90) : 'l'.repeat(200)}`
    const big = Buffer.alloc(300_001, 'x')
    writeFileSync(at(`from/${long}`), big)
    writeFileSync(at('from/run.sh'), 'text', { mode: 0o755 })
    writeFileSync(at('from/empty'), '')
    execFileSync('ln', [at('from/run.sh'), at('from/twin')])
    symlinkSync('deep', at('from/link'))
    expect(await unpack(pack(`--format=${form}`), at('to'))).toEqual({ count: 5, skipped: [] })
    expect(readFileSync(at(`to/${long}`)).equals(big)).toBe(true)
    expect(statSync(at('to/run.sh')).mode & 0o777).toBe(0o755 & ~process.umask())
    expect(readFileSync(at('to/twin'), 'utf8')).toBe('text')
    expect(readFileSync(at('to/empty'), 'utf8')).toBe('')
    expect(readlinkSync(at('to/link'))).toBe('deep')
  })

  test('may arrive in pieces of any size', async () => {
    const archive = forge({ path: 'a', contents: 'x'.repeat(700) }, { path: 'b', contents: 'y' })
    for (const size of [1, 7, 511, 513]) {
      await unpack(chunked(archive, size), at(`to-${size}`))
      expect(readFileSync(at(`to-${size}/b`), 'utf8')).toBe('y')
    }
  })

  test('takes the place of what was there', async () => {
    mkdirSync(at('to'))
    writeFileSync(at('to/a'), 'old and longer')
    await unpackForged({ path: 'a', contents: 'new' })
    expect(readFileSync(at('to/a'), 'utf8')).toBe('new')
  })
})

describe('a malicious archive', () => {
  test('does not leave the directory', async () => {
    await expect(unpackForged({ path: '../out', contents: 'x' })).rejects.toThrow('unsafe path')
    await expect(unpackForged({ path: 'a', kind: '1', target: '../from/run.sh' })).rejects.toThrow()
    await unpackForged({ path: '/abs/file', contents: 'x' })
    expect(existsSync(at('out'))).toBe(false)
    expect(readFileSync(at('to/abs/file'), 'utf8')).toBe('x')
  })

  test('does not write through a link of its own', async () => {
    mkdirSync(at('victim'))
    await unpackForged({ path: 'way', kind: '2', target: at('victim') }, { path: 'way/file', contents: 'x' }).catch(
      () => undefined,
    )
    expect(existsSync(at('victim/file'))).toBe(false)
  })

  test('does not write through a link that an earlier one left', async () => {
    mkdirSync(at('victim'))
    writeFileSync(at('victim/file'), 'mine')
    await unpackForged(
      { path: 'way', kind: '2', target: at('victim') },
      { path: 'leaf', kind: '2', target: at('victim/file') },
    )
    await unpackForged({ path: 'way/file', contents: 'x' }, { path: 'leaf', contents: 'x' })
    expect(readFileSync(at('victim/file'), 'utf8')).toBe('mine')
    expect(readFileSync(at('to/way/file'), 'utf8')).toBe('x')
  })

  test('makes no devices and gives no rights of others', async () => {
    const entries = [
      { path: 'disk', kind: '3' },
      { path: 'root', mode: 0o6755, contents: 'x' },
    ]
    expect(await unpackForged(...entries)).toEqual({ count: 1, skipped: ['disk'] })
    expect(existsSync(at('to/disk'))).toBe(false)
    expect(statSync(at('to/root')).mode & 0o7000).toBe(0)
  })

  test('is refused when it is damaged or truncated', async () => {
    const archive = forge({ path: 'a', contents: 'x'.repeat(700) })
    await expect(unpack(chunked(archive.subarray(0, 900), 100), at('to'))).rejects.toThrow('truncated')
    archive[0] = 0x7a
    await expect(unpack(chunked(archive, 100), at('to'))).rejects.toThrow('not a valid tar archive')
    await expect(unpack(chunked(Buffer.alloc(600, 'no'), 100), at('to'))).rejects.toThrow('not a valid tar archive')
  })
})

test('a path inside has no dots', () => {
  expect(safePath('./a//b/./c/')).toBe('a/b/c')
  expect(safePath('./')).toBe('')
  expect(() => safePath('a/../../b')).toThrow()
})
