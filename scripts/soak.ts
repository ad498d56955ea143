// Runs the oracle of restores with many targets per major version, and prints one line of counts for each kind and major.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

interface Result {
  kind: string
  major: string
  targets: number
  counts: Record<string, number>
}

const outcomes = ['right', 'refused', 'failed naming the damage', 'wrong', 'silent', 'hung', 'other fault']
const faults = outcomes.slice(3)
const majors = ['16', '17']

const wanted = Number(process.env.BERTH_SOAK_TARGETS ?? 1000)
const seconds = process.env.BERTH_SOAK_SECONDS ?? '60'
if (!Number.isSafeInteger(wanted) || wanted < 1) {
  console.error('BERTH_SOAK_TARGETS must be a number of targets per major version, such as 1000')
  process.exit(2)
}

const directory = mkdtempSync(join(tmpdir(), 'berth-soak-'))
const file = join(directory, 'results')
const env = {
  ...process.env,
  BERTH_SOAK_TARGETS: String(wanted),
  BERTH_SOAK_SECONDS: seconds,
  BERTH_SOAK_RESULTS: file,
}
const tests = ['test', '--silent', '--', '--no-file-parallelism', 'test/e2e/postgres/oracle']
const { status } = spawnSync('npm', tests, { env, stdio: 'inherit' })
const results: Result[] = existsSync(file)
  ? readFileSync(file, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
  : []
rmSync(directory, { recursive: true })

function describe(title: string, found: Result[]): string {
  const sum = (outcome: string) => found.reduce((total, { counts }) => total + (counts[outcome] ?? 0), 0)
  const targets = found.reduce((total, result) => total + result.targets, 0)
  return `${title}: ${targets} targets, ${outcomes.map((outcome) => `${sum(outcome)} ${outcome}`).join(', ')}`
}

const problems: string[] = []
console.info('')
for (const major of majors) {
  const found = results.filter((result) => result.major === major)
  for (const result of found) console.info(describe(`PostgreSQL ${major}, ${result.kind}`, [result]))
  console.info(describe(`PostgreSQL ${major}`, found))
  const targets = found.reduce((total, result) => total + result.targets, 0)
  if (targets < wanted) problems.push(`PostgreSQL ${major} had ${targets} targets instead of ${wanted}`)
}
console.info(describe('All', results))
if (results.some(({ counts }) => faults.some((fault) => counts[fault]))) problems.push('there were faults')
if (status !== 0) problems.push('a test failed')
if (problems.length > 0) console.error(problems.join('; '))
process.exitCode = problems.length > 0 ? 1 : 0
