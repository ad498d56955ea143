// Runs the first commands of the README unchanged, because users try them first.
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { afterEach, expect, test } from 'vitest'
import { Berth } from '../support/berth.ts'
import { until } from '../support/until.ts'

const repository = new URL('../..', import.meta.url).pathname
const readme = readFileSync(`${repository}README.md`, 'utf8')
const run = promisify(execFile)

let berth: Berth

afterEach(() => berth.destroy())

function findSession(text: string): string {
  return [...readme.matchAll(/^```sh\n(.*?)^```/gms)].map(([, block]) => block!).find((block) => block.includes(text))!
}

test('the first session of the README restores the rows', async () => {
  berth = new Berth({ PSQL_PAGER: '' })
  await berth.up()
  const session = findSession('berth postgres create shop')
  const { stdout } = await run('sh', ['-ec', session], { cwd: repository, env: berth.environment })
  expect(stdout).toMatch(/^ id *\n-+\n +1\n +2\n +3\n\(3 rows\)\n\n?$/m)
}, 240_000)

test('the sandbox session of the README serves the page', async () => {
  berth = new Berth()
  await berth.up()
  const session = findSession('berth sandbox create demo')
  expect(session).toContain('\n./berth sandbox console demo')
  const withoutTerminal = session.replace(/^\.\/berth sandbox console.*\n/m, '')
  const { stdout } = await run('sh', ['-ec', withoutTerminal], { cwd: repository, env: berth.environment })
  const [url] = /^http:\S+$/m.exec(stdout)!
  const fetchPage = () => run('curl', ['--fail', '--silent', '--show-error', url]).catch(() => undefined)
  await until(async () => (await fetchPage())?.stdout === 'hello\n', 60)
}, 240_000)
