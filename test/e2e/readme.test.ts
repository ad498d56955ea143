// Runs the first commands of the README unchanged, because users try them first.
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { afterEach, expect, test } from 'vitest'
import { Berth } from '../support/berth.ts'

const repository = new URL('../..', import.meta.url).pathname
const readme = readFileSync(`${repository}README.md`, 'utf8')

let berth: Berth

afterEach(() => berth.destroy())

test('the first session of the README restores the rows', async () => {
  const session = /\n## A first session\n\n```sh\n(.*?)```/s.exec(readme)![1]!
  berth = new Berth({ PSQL_PAGER: '' })
  await berth.up()
  const { stdout } = await promisify(execFile)('sh', ['-ec', session], { cwd: repository, env: berth.environment })
  expect(stdout).toMatch(/^ id *\n-+\n +1\n +2\n +3\n\(3 rows\)\n\n?$/m)
}, 240_000)
