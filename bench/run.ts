import { machines } from './app-machine.ts'
import { edges } from './edge.ts'
import { edgeApps } from './edge-app.ts'
import { edgeUploads } from './edge-upload.ts'
import { foundation } from './foundation.ts'
import { type Outcome, runGroups, verdictOf } from './framework.ts'
import { images } from './image.ts'
import { pools } from './pool.ts'
import { postgres } from './postgres.ts'
import { reflink } from './reflink.ts'
import { restore } from './restore.ts'
import { printRow, rowOf, runText, writeResults } from './results.ts'
import { sandbox } from './sandbox.ts'

const groups = [
  ...foundation,
  ...postgres,
  ...restore,
  ...reflink,
  ...pools,
  ...edges,
  ...edgeApps,
  ...edgeUploads,
  ...sandbox,
  ...images,
  ...machines,
]

async function main(names: string[]): Promise<void> {
  const known = groups.flatMap((group) => group.names)
  const unknown = names.filter((name) => !known.includes(name))
  if (unknown.length > 0) {
    console.error(`no such benchmark: ${unknown.join(', ')}; known benchmarks: ${known.join(', ')}`)
    process.exit(2)
  }
  const run = runText()
  console.log(`${run}\n`)
  const outcomes: Outcome[] = []
  await runGroups(
    groups,
    (name) => names.length === 0 || names.includes(name),
    (outcome) => {
      outcomes.push(outcome)
      printRow(rowOf(outcome))
      if (outcome.error) console.error(outcome.error)
    },
  )
  writeResults(run, outcomes.map(rowOf), known)
  if (outcomes.some((outcome) => verdictOf(outcome) !== 'pass')) process.exitCode = 1
}

await main(process.argv.slice(2))
