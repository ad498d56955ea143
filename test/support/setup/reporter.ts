import { writeFileSync } from 'node:fs'
import { relative } from 'node:path'
import type { Reporter, TestCase, TestModule } from 'vitest/node'

const shownFiles = 8
const keptSeconds = 5

/**
 * Prints a failure when it happens, so that a run that is stopped shows it too. At the end it prints which tests failed,
 * which this host could not run, and which files took the most time.
 */
export class SummaryReporter implements Reporter {
  onTestCaseResult(test: TestCase): void {
    const { state, errors } = test.result()
    if (state !== 'failed') return
    const texts = errors?.flatMap(({ message, stack, diff }) => [stack ?? message, diff ?? '']) ?? []
    print(`\n Failed: ${pathOf(test.module)} > ${test.fullName}`, texts)
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    const skipped = modules.flatMap((module) =>
      [...module.children.allTests('skipped')].map((test) => `${pathOf(module)} > ${test.fullName}`),
    )
    if (skipped.length > 0) print(`\n Not run on this host (${skipped.length}):`, skipped)
    const durations = modules.map((module) => ({ path: pathOf(module), seconds: secondsOf(module) }))
    durations.sort((a, b) => b.seconds - a.seconds)
    if (durations.length > shownFiles) {
      const longest = durations.slice(0, shownFiles)
      print(
        '\n Longest files:',
        longest.map(({ path, seconds }) => `${String(seconds).padStart(4)} s  ${path}`),
      )
    }
    if (process.env.BERTH_WRITE_DURATIONS) writeDurations(durations)
    const failed = modules.flatMap(listFailures)
    if (failed.length > 0) print(`\n Failed (${failed.length}):`, failed)
  }
}

/** Each failed test with the first line of its error, and files whose set-up failed. */
function listFailures(module: TestModule): string[] {
  const tests = [...module.children.allTests('failed')].map((test) => {
    const [reason = ''] = test.result().errors?.[0]?.message.split('\n') ?? []
    return `${pathOf(module)} > ${test.fullName}: ${reason}`
  })
  return [...tests, ...module.errors().map(({ message }) => `${pathOf(module)}: ${message}`)]
}

function writeDurations(durations: { path: string; seconds: number }[]): void {
  const kept = durations.filter(({ seconds }) => seconds >= keptSeconds)
  const table = Object.fromEntries(kept.map(({ path, seconds }) => [path, seconds]))
  writeFileSync('test/durations.json', `${JSON.stringify(table, null, 2)}\n`)
}

function pathOf(module: TestModule): string {
  return relative(process.cwd(), module.moduleId)
}

function secondsOf(module: TestModule): number {
  return Math.round(module.diagnostic().duration / 1000)
}

function print(title: string, lines: string[]): void {
  console.log([title, ...lines.map((line) => `   ${line}`)].join('\n'))
}
