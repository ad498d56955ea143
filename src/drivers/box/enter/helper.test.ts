import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { afterAll, expect, test } from 'vitest'
import { type BoxDriver, BoxFileError, type BoxSpec } from '../driver.ts'
import { BoxHelper, BoxUnavailable } from './helper.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-helper-`)
afterAll(() => rmSync(directory, { recursive: true, force: true }))

/** A helper of which only what it says is real. */
function helper(script: string, ...words: string[]): BoxHelper {
  const program = `${directory}/${Math.random()}`
  writeFileSync(program, `#!/bin/sh\n${script}\n`)
  chmodSync(program, 0o755)
  const boxes = { entry: () => ({ program, args: [], env: { PATH: '/usr/bin:/bin' } }) } as Partial<BoxDriver>
  return new BoxHelper(boxes as BoxDriver, {} as BoxSpec, 'box/file/file.pl', words)
}

test('records come one by one, however they are cut, and bytes after them', async () => {
  const one = helper(`printf '5:a'; sleep 0.05; printf '\\000b\\000c3:x:y2:zzrest'; sleep 0.05; printf ' of it'`)
  expect(await one.next()).toEqual(['a', 'b', 'c'])
  expect(await one.next()).toEqual(['x:y'])
  expect(await one.next()).toEqual(['zz'])
  const pieces: Buffer[] = []
  for await (const piece of one.bytes()) pieces.push(piece)
  expect(Buffer.concat(pieces).toString()).toBe('rest of it')
})

test('its words reach it with their length', async () => {
  const one = helper(`text=$(head -c 9 | od -An -c | tr -d ' \n'); printf "%s:%s" \${#text} "$text"`, 'list', 'xy')
  expect(await one.next()).toEqual(['7:list\\0xy'])
  one.end()
})

test('an error of the system has its name', async () => {
  const failing = helper(`printf '14:error\\0002\\000/x\\000why'`)
  const error = await failing.next().catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(BoxFileError)
  expect(error).toMatchObject({ code: 'ENOENT', path: '/x', why: 'why' })
})

test.each([
  ['exit 75', 'the sandbox is not running'],
  ['kill -9 $$', 'the sandbox has no memory left'],
])('%s is the fault of the sandbox', async (script, message) => {
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
])('%s is not taken for an answer', async (script) => {
  const broken = helper(`echo reason >&2; ${script}`)
  await expect(broken.next()).rejects.toThrow('work in a box broke off')
  broken.end()
})

test('one that is ended ends', async () => {
  const waiting = helper('exec sleep 1000')
  const asked = waiting.next('forever').catch((thrown: Error) => thrown)
  waiting.end()
  expect(await asked).toBeInstanceOf(Error)
  expect(await waiting.exit).toBe(null)
})
