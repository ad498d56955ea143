// Writes the files that are derived from the code. A test fails when one of them is stale.
import { writeFileSync } from 'node:fs'
import { generatedFiles } from './generated.ts'

for (const [path, text] of Object.entries(generatedFiles())) {
  writeFileSync(new URL(`../${path}`, import.meta.url), text)
  console.log(path)
}
