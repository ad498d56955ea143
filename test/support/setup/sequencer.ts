import { readFileSync } from 'node:fs'
import { relative } from 'node:path'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/** The seconds that test files took when they were last measured (`make durations`), without files below 5 seconds. */
const measured: Record<string, number> = JSON.parse(readFileSync('test/durations.json', 'utf8'))

/** Starts the longest files first, so that no worker is left with a long one at the end. */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    return [...files].sort((a, b) => expectedSeconds(b) - expectedSeconds(a))
  }
}

function expectedSeconds({ moduleId }: TestSpecification): number {
  const path = relative(process.cwd(), moduleId)
  return measured[path] ?? (path.startsWith('test/e2e/') ? 20 : 0)
}
