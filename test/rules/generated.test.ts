import { readFileSync } from 'node:fs'
import { createConfig, lintFromString } from '@redocly/openapi-core'
import { expect, test } from 'vitest'
import { generatedFiles } from '../../scripts/generated.ts'
import { platformRoutes } from '../../src/api/routes.ts'

const files = generatedFiles()

test.each(Object.keys(files))('%s is up to date (else: make generate)', (path) => {
  expect(readFileSync(path, 'utf8')).toBe(files[path])
})

test.each(['openapi.json', 'openapi-sandbox.json'])('%s passes the linter', async (path) => {
  const config = await createConfig({
    extends: ['recommended'],
    rules: { 'no-empty-servers': 'off', 'operation-4xx-response': 'error' },
  })
  const problems = await lintFromString({ source: files[path]!, absoluteRef: path, config })
  expect(
    problems.map((problem) => `${problem.ruleId}: ${problem.message} ${JSON.stringify(problem.location[0])}`),
  ).toEqual([])
})

test('every operation documents its answer and every refusal it shares with the others', () => {
  const { paths } = JSON.parse(files['openapi.json']!)
  for (const route of platformRoutes) {
    const operation = paths[route.path][route.method.toLowerCase()]
    expect(Object.keys(operation.responses)).toEqual(
      expect.arrayContaining([
        String(route.status),
        '400',
        '401',
        '413',
        '429',
        '500',
        '503',
        ...Object.keys(route.errors),
      ]),
    )
  }
})
