import { globSync, readFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { expect, test } from 'vitest'

const maxFilesPerFolder = 35
const maxLinesPerFile = 400

/** Files that `make generate` writes. */
const generated = ['src/cli/api-types.ts']

const programs = globSync('src/**/*.{ts,pl,sh}').filter((path) => !generated.includes(path))

test('no folder holds more files than one can survey', () => {
  const counts = new Map<string, number>()
  for (const path of globSync('{src,test,bench,scripts}/**/*.*')) {
    counts.set(dirname(path), (counts.get(dirname(path)) ?? 0) + 1)
  }
  expect([...counts].filter(([, count]) => count > maxFilesPerFolder)).toEqual([])
})

test('no source file is longer than one can hold in mind', () => {
  const lengths = programs.map((path) => [path, readFileSync(path, 'utf8').split('\n').length - 1] as const)
  expect(lengths.filter(([, lines]) => lines > maxLinesPerFile)).toEqual([])
})
