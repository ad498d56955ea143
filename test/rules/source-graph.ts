import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

export interface Source {
  path: string
  text: string
  /** Paths of the files below `src` that it imports, resolved. Type-only and dynamic imports count. */
  imports: string[]
}

const specifier = /\b(?:from|import)\s*\(?\s*'(\.{1,2}\/[^']+)'/g

/** Every source file below `src` except the tests, with what it imports. */
export function readSources(): Map<string, Source> {
  const paths = globSync('src/**/*.ts').filter((path) => !path.endsWith('.test.ts'))
  return new Map(paths.map((path) => [path, readSource(path)]))
}

function readSource(path: string): Source {
  const text = readFileSync(path, 'utf8')
  const imports = [...text.matchAll(specifier)].map(([, target]) => join(dirname(path), target!))
  const missing = imports.find((target) => !existsSync(target))
  if (missing) throw new Error(`${path} imports ${missing}, which does not exist`)
  return { path, text, imports: [...new Set(imports)].filter((target) => target.startsWith('src/')) }
}

/** Groups of files that import each other, directly or through others (Tarjan's strongly connected components). */
export function findCycles(sources: Map<string, Source>): string[][] {
  const order = new Map<string, number>()
  const lowest = new Map<string, number>()
  const stack: string[] = []
  const cycles: string[][] = []

  function visit(path: string): void {
    order.set(path, order.size)
    lowest.set(path, order.get(path)!)
    stack.push(path)
    for (const target of sources.get(path)?.imports ?? []) {
      if (!order.has(target)) visit(target)
      if (stack.includes(target)) lowest.set(path, Math.min(lowest.get(path)!, lowest.get(target)!))
    }
    if (lowest.get(path) !== order.get(path)) return
    const component = stack.splice(stack.indexOf(path))
    if (component.length > 1) cycles.push(component.sort())
  }

  for (const path of sources.keys()) if (!order.has(path)) visit(path)
  return cycles
}
