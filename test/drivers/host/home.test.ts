import { chmodSync, cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs'
import { afterAll, expect, test } from 'vitest'
import { openHome, readOrCreateKey, readOrCreateToken, uidsPerHome } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { canRunAs, firstLine, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'

const directories: string[] = []
const uidBase = 300_000
const nobody = 65534

function newDirectory(owner?: number): string {
  const directory = temporaryDirectory(owner)
  directories.push(directory)
  return directory
}

const registry = `${newDirectory()}/registry`

afterAll(() => {
  for (const directory of directories) rmSync(directory, { recursive: true, force: true })
})

function open(path: string, options: { registry?: string } = {}) {
  return openHome(path, { uidBase, registry, ...options })
}

test('creates the directories of a home and opens them again', async () => {
  const path = `${newDirectory()}/home`
  const home = await open(path)
  expect(home).toMatchObject({ path, tree: `${path}/tree`, addressesFile: `${path}/run/addresses.json` })
  expect(statSync(path).mode & 0o777).toBe(isRoot() ? 0o711 : 0o700)
  expect(statSync(home.tree).mode & 0o777).toBe(0o700)
  expect(home.uidStart).toBe(uidBase + home.number * uidsPerHome)
  expect(await open(path)).toEqual(home)
})

test('keeps the uids of all homes below the limit of the kernel', () => {
  expect(uidBase + 63 * uidsPerHome).toBeLessThan(2 ** 32)
})

test.runIf(isRoot())('gives each home of a machine its own number, also when they are opened at once', async () => {
  const own = `${newDirectory()}/registry`
  const paths = Array.from({ length: 8 }, () => `${newDirectory()}/home`)
  const homes = await Promise.all([...paths, ...paths].map((path) => open(path, { registry: own })))
  expect(new Set(homes.map((home) => home.number)).size).toBe(8)
  expect(homes.slice(0, 8).map((home) => home.number)).toEqual(homes.slice(8).map((home) => home.number))
})

test.runIf(isRoot())('reuses the number of a deleted home', async () => {
  const own = `${newDirectory()}/registry`
  const first = await open(`${newDirectory()}/home`, { registry: own })
  rmSync(first.path, { recursive: true })
  const second = await open(`${newDirectory()}/home`, { registry: own })
  expect(second.number).toBe(first.number)
  expect(readFileSync(`${own}/${second.number}`, 'utf8')).toBe(second.path)
})

test.runIf(isRoot())('keeps the number of a home that was moved, and refuses a copy beside the original', async () => {
  const own = `${newDirectory()}/registry`
  const parent = newDirectory()
  await open(`${parent}/other`, { registry: own })
  const home = await open(`${parent}/home`, { registry: own })
  cpSync(home.path, `${parent}/copy`, { recursive: true })
  await expect(open(`${parent}/copy`, { registry: own })).rejects.toThrow('two copies of one home')
  renameSync(home.path, `${parent}/moved`)
  expect((await open(`${parent}/moved`, { registry: own })).number).toBe(home.number)
})

test.runIf(isRoot())('fails with a message when all numbers are taken', async () => {
  const own = `${newDirectory()}/registry`
  const parent = newDirectory()
  for (let i = 0; i < 63; i++) await open(`${parent}/${i}`, { registry: own })
  await expect(open(`${parent}/one-more`, { registry: own })).rejects.toThrow('All 63 numbers')
})

test('rejects a path that is too long for Unix sockets below it', async () => {
  await expect(open(`${newDirectory()}/${'long'.repeat(20)}`)).rejects.toThrow('choose a shorter one')
})

test.runIf(isRoot())('refuses a home below a directory that others cannot traverse', async () => {
  const closed = `${newDirectory()}/closed`
  mkdirSync(closed)
  chmodSync(closed, 0o700)
  await expect(open(`${closed}/home`)).rejects.toThrow(`run chmod o+x ${closed}`)
})

test('keeps the key and the token it created first, readable only by the owner', async () => {
  const home = await open(newDirectory())
  const key = readOrCreateKey(home)
  expect(key.length).toBe(32)
  expect(readOrCreateKey(home)).toEqual(key)
  expect(readOrCreateToken(home, () => 'first')).toBe('first')
  expect(readOrCreateToken(home, () => 'second')).toBe('first')
  for (const file of [home.keyFile, home.tokenFile]) expect(statSync(file).mode & 0o777).toBe(0o600)
})

test('gives the same key to concurrent processes', async () => {
  const path = newDirectory()
  const programs = Array.from({ length: 6 }, () =>
    startProgram(`
      import { openHome, readOrCreateKey } from 'drivers/host/home.ts'
      const home = await openHome('${path}', { uidBase: ${uidBase}, registry: '${registry}' })
      console.log(readOrCreateKey(home).toString('hex'))
    `),
  )
  const keys = await Promise.all(programs.map(firstLine))
  expect(keys[0]).toMatch(/^[0-9a-f]{64}$/)
  expect(new Set(keys).size).toBe(1)
  expect(readdirSync(path).filter((entry) => entry.startsWith('.new'))).toEqual([])
})

test.runIf(canRunAs(nobody))('opens a home as an ordinary user without the registry of the machine', async () => {
  const path = `${newDirectory(nobody)}/home`
  const program = startProgram(
    `
      import { openHome } from 'drivers/host/home.ts'
      const first = await openHome('${path}', { uidBase: ${uidBase} })
      const again = await openHome('${path}', { uidBase: ${uidBase} })
      console.log(JSON.stringify([first.number, again.number]))
    `,
    nobody,
  )
  const [number, again] = JSON.parse(await firstLine(program))
  expect(number).toBe(again)
  expect(statSync(path).mode & 0o777).toBe(0o700)
})
