import { globSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

/** Which folder may import which. The arrows of the architecture, and the only copy of them. */
const mayImport: Record<string, string[]> = {
  model: [],
  store: ['model'],
  drivers: ['model'],
  actions: ['model', 'store'],
  live: ['model', 'store', 'drivers'],
  reconcile: ['model', 'store', 'drivers'],
  api: ['model', 'actions', 'live'],
  edge: ['model', 'store'],
  cli: [],
  main: ['model', 'store', 'drivers', 'actions', 'live', 'reconcile', 'api', 'edge', 'cli'],
}

/** Packages that belong in one place, and that place. */
const confined: Record<string, RegExp> = {
  pg: /^src\/(store|main|drivers\/postgres)/,
  fastify: /^src\/(api|main)\//,
  commander: /^src\/(cli|main)\//,
}

const files = globSync('src/**/*.ts').filter((file) => !file.endsWith('.test.ts'))
const sources = new Map(files.map((file) => [file, readFileSync(file, 'utf8')]))

test.each(files)('%s imports only what its folder may', (file) => {
  const folder = file.split('/')[1]!
  const targets = [...sources.get(file)!.matchAll(/from '\.\.\/([a-z]+)\//g)].map((match) => match[1]!)
  expect(targets.filter((target) => target !== folder && !mayImport[folder]!.includes(target))).toEqual([])
})

test.each(Object.keys(confined))('%s is imported only where it belongs', (name) => {
  const importers = files.filter((file) =>
    new RegExp(`^import (?!type ).*from '${name}'`, 'm').test(sources.get(file)!),
  )
  expect(importers.filter((file) => !confined[name]!.test(file))).toEqual([])
})

test('the environment is read in one place', () => {
  const readers = files.filter((file) => sources.get(file)!.includes('process.env'))
  expect(readers).toEqual(['src/main/config.ts'])
})

test('end-to-end tests do not import the source', () => {
  const importers = globSync('test/e2e/**/*.ts').filter((file) =>
    /from '(\.\.\/)+src\//.test(readFileSync(file, 'utf8')),
  )
  expect(importers).toEqual([])
})
