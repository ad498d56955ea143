// Runs the oracle of restores with many targets per major version, and prints one line of counts for each kind and major. It
// fails if any target was wrong, silent or hung, or if there were fewer targets than wanted.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

interface Result {
  kind: string
  major: string
  outcome: string
  /** What happened, if it is a fault. */
  what?: string
}

const expected = ['right', 'refused', 'failed naming the damage']
const faults = ['wrong', 'silent', 'hung', 'other fault']
const majors = ['16', '17']

const wanted = Number(process.env.BERTH_SOAK_TARGETS ?? 1000)
const seconds = process.env.BERTH_SOAK_SECONDS ?? '60'
if (!Number.isSafeInteger(wanted) || wanted < 1) {
  console.error('BERTH_SOAK_TARGETS must be the number of targets per major version, such as 1000')
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
// Ctrl-C ends the tests, and the summary of what they have done follows.
process.on('SIGINT', () => undefined)
const tests = ['test', '--silent', '--', '--no-file-parallelism', 'test/e2e/postgres/oracle']
const { status } = spawnSync('npm', tests, { env, stdio: 'inherit' })
const lines = existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : []
const results: Result[] = lines.map((line) => JSON.parse(line))
rmSync(directory, { recursive: true })

function describe(title: string, found: Result[]): string {
  const counts = [...expected, ...faults].map(
    (outcome) => `${found.filter((result) => result.outcome === outcome).length} ${outcome}`,
  )
  return `${title}: ${found.length} targets, ${counts.join(', ')}`
}

const problems: string[] = []
console.info('')
for (const major of majors) {
  const found = results.filter((result) => result.major === major)
  for (const kind of new Set(found.map((result) => result.kind))) {
    const those = found.filter((result) => result.kind === kind)
    console.info(describe(`PostgreSQL ${major}, ${kind}`, those))
  }
  console.info(describe(`PostgreSQL ${major}`, found))
  if (found.length < wanted) problems.push(`PostgreSQL ${major} had ${found.length} targets instead of ${wanted}`)
}
console.info(describe('All', results))
for (const { kind, major, outcome, what } of results) {
  if (what !== undefined) console.error(`PostgreSQL ${major}, ${kind}, ${outcome}: ${what}`)
}
if (results.some(({ outcome }) => faults.includes(outcome))) problems.push('there were faults')
if (status !== 0) problems.push('a test failed')
if (problems.length > 0) console.error(problems.join('; '))
process.exitCode = problems.length > 0 ? 1 : 0
