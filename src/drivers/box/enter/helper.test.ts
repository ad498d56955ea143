import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { afterAll, expect, test } from 'vitest'
import { BoxFileError, type BoxHelper, BoxUnavailable } from '../driver.ts'
import { startHelper } from './helper.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-helper-`)
afterAll(() => rmSync(directory, { recursive: true, force: true }))

/** A helper whose program is a shell script. */
function helper(script: string, ...words: string[]): BoxHelper {
  const program = `${directory}/${Math.random()}`
  writeFileSync(program, `#!/bin/sh\n${script}\n`)
  chmodSync(program, 0o755)
  return startHelper({ program, args: [], env: { PATH: '/usr/bin:/bin' } }, 'box/file/file.pl', words)
}

test('returns records one by one, however they are split, and then the bytes', async () => {
  const one = helper(`printf '5:a'; sleep 0.05; printf '\\000b\\000c3:x:y2:zzrest'; sleep 0.05; printf ' of it'`)
  expect(await one.next()).toEqual(['a', 'b', 'c'])
  expect(await one.next()).toEqual(['x:y'])
  expect(await one.next()).toEqual(['zz'])
  const pieces: Buffer[] = []
  for await (const piece of one.bytes()) pieces.push(piece)
  expect(Buffer.concat(pieces).toString()).toBe('rest of it')
})

test('sends its words with their length', async () => {
  const one = helper(`text=$(head -c 9 | od -An -c | tr -d ' \n'); printf "%s:%s" \${#text} "$text"`, 'list', 'xy')
  expect(await one.next()).toEqual(['7:list\\0xy'])
  one.end()
})

test('throws errors of the kernel by name', async () => {
  const failing = helper(`printf '14:error\\0002\\000/x\\000why'`)
  const error = await failing.next().catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(BoxFileError)
  expect(error).toMatchObject({ code: 'ENOENT', path: '/x', why: 'why' })
})

test.each([
  ['exit 75', 'the sandbox is not running'],
  ['kill -9 $$', 'the sandbox has no memory left'],
])('%s makes the sandbox unavailable', async (script, message) => {
  const error = await helper(script)
    .next()
    .catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(BoxUnavailable)
  expect((error as Error).message).toBe(message)
})

test.each([
  'exit 0',
  'exit 1',
  'echo hello there, this is no record',
  'printf 99999999:x',
  'printf 10:short',
  'printf -- -1:x',
])('%s is not accepted as a record', async (script) => {
  const broken = helper(`echo reason >&2; ${script}`)
  await expect(broken.next()).rejects.toThrow('helper in the box failed')
  broken.end()
})

test('ends the process', async () => {
  const waiting = helper('exec sleep 1000')
  const asked = waiting.next('forever').catch((thrown: Error) => thrown)
  waiting.end()
  expect(await asked).toBeInstanceOf(Error)
  expect(await waiting.exit).toBe(null)
})
