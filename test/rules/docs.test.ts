import { existsSync, globSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

const documents = globSync(['*.md', 'docs/**/*.md'])

/** Paths in backticks that name a file or folder of the repository. Those with a placeholder, such as `<area>`, do not count. */
function pathsIn(text: string): string[] {
  return [...text.matchAll(/`((?:src|test|scripts|docs|migrations|bench)\/[\w./-]*)`/g)].map(([, path]) => path!)
}

test.each(documents)('%s names only files that exist', (document) => {
  expect(pathsIn(readFileSync(document, 'utf8')).filter((path) => !existsSync(path))).toEqual([])
})

test('documents link only to files that exist', () => {
  const broken = documents.flatMap((document) => {
    const folder = document.includes('/') ? `${document.slice(0, document.lastIndexOf('/'))}/` : ''
    const targets = [...readFileSync(document, 'utf8').matchAll(/\]\(([^)#]+?)(?:#[^)]*)?\)/g)].map(
      ([, target]) => target!,
    )
    return targets
      .filter((target) => !target.includes(':') && !existsSync(folder + target))
      .map((t) => `${document}: ${t}`)
  })
  expect(broken).toEqual([])
})
