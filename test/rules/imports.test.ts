import { globSync, readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { findCycles, readSources, type Source } from './source-graph.ts'

/** Which stage may import which. This is the only copy of the arrows in ARCHITECTURE.md. */
const stages: Record<string, string[]> = {
  model: [],
  store: ['model'],
  drivers: ['model'],
  actions: ['model', 'store'],
  live: ['model', 'store', 'drivers'],
  reconcile: ['model', 'store', 'drivers'],
  api: ['model', 'actions', 'live'],
  edge: ['model', 'store'],
  cli: ['model'],
  main: ['model', 'store', 'drivers', 'actions', 'live', 'reconcile', 'api', 'edge', 'cli'],
}

/** Stages whose folders are areas of the product. */
const stagesWithAreas = ['model', 'store', 'actions', 'live', 'reconcile', 'api', 'cli']
const areas = ['postgres', 'app', 'sandbox', 'account']

/** Files that cross from one area to another, and why. */
const crossings: Record<string, string> = {
  'src/actions/app/attachment.ts': 'attaches a cluster to an app',
  'src/api/app/attachment.ts': 'attaches a cluster to an app',
  'src/actions/account/token.ts': 'issues tokens for a single app',
  'src/actions/account/token-check.ts': 'checks what a token may do with apps, machines and volumes',
  'src/live/app/machine-session.ts': 'runs commands in sessions like those of sandboxes',
  'src/api/app/machine-session.ts': 'runs commands in sessions like those of sandboxes',
  'src/cli/app/machine-console.ts': 'opens a terminal as in a sandbox',
  'src/reconcile/app/image-collection.ts': 'keeps images that a sandbox uses',
}

/** Files at the root of a stage that list what every area contributes. */
const registries = [
  'src/api/routes.ts',
  'src/live/context.ts',
  'src/model/settings.ts',
  'src/reconcile/loop.ts',
  'src/store/edge-request.ts',
  'src/store/transition.ts',
]

/** Packages that belong in one place, and that place. */
const confined: Record<string, RegExp> = {
  pg: /^src\/(store|main|drivers\/(postgres|state))\//,
  fastify: /^src\/(api|main)\//,
  commander: /^src\/(cli|main)\//,
}

/** Files outside the edge and the CLI that open connections or ask DNS, and where to. */
const outbound: Record<string, string> = {
  'src/drivers/box/enter/session-socket.ts': 'Unix sockets of the platform in a directory of its own',
  'src/drivers/network/guarded-http.ts': 'the only client for addresses that a tenant can influence; checks each',
  'src/drivers/network/outbound-lookup.ts': 'resolves names for guarded-http.ts',
  'src/drivers/network/lookup.ts': 'asks DNS about host names of apps, and hides internal addresses',
  'src/drivers/network/port.ts': 'addresses of the configuration',
  'src/live/sandbox/proxy.ts': 'the address of the box, or a name that is resolved inside the box',
  'src/drivers/postgres/import/forward.ts':
    'the addresses of the source of an import, which outbound-target.ts has checked',
  'src/drivers/postgres/confinement.ts': 'resolves the addresses that the operator configured',
  'src/main/status.ts': 'the API of this platform',
  'src/reconcile/app/machine-check-run.ts': 'the address of the box',
}

const sources = readSources()
const files = [...sources.values()]

function stageOf(path: string): string {
  return path.split('/')[1]!
}

/** The area a file belongs to; undefined at the root of a stage and in folders that serve several areas. */
function areaOf(path: string): string | undefined {
  const [, stage, folder] = path.split('/')
  return stagesWithAreas.includes(stage!) && areas.includes(folder!) ? folder : undefined
}

function isAtRoot(path: string): boolean {
  return stagesWithAreas.includes(stageOf(path)) && path.split('/').length === 3
}

function violations(isAllowed: (source: Source, target: string) => boolean): string[] {
  return files.flatMap((source) =>
    source.imports.filter((target) => !isAllowed(source, target)).map((target) => `${source.path} imports ${target}`),
  )
}

test('a stage imports only the stages it may', () => {
  expect(
    violations(({ path }, target) => {
      const [from, to] = [stageOf(path), stageOf(target)]
      return from === to || stages[from]!.includes(to)
    }),
  ).toEqual([])
})

describe('an area', () => {
  test('imports only itself, account and what all areas share', () => {
    expect(
      violations(({ path }, target) => {
        const [from, to] = [areaOf(path), areaOf(target)]
        return !from || !to || from === to || to === 'account' || path in crossings
      }),
    ).toEqual([])
  })

  test('is not imported by what all areas share, except by registries', () => {
    expect(
      violations(({ path }, target) => {
        const to = areaOf(target)
        return !isAtRoot(path) || !to || to === 'account' || registries.includes(path)
      }),
    ).toEqual([])
  })

  test('crosses to another only where a file is listed, and every listed file does', () => {
    const crossing = files.filter(({ path, imports }) =>
      imports.some((target) => areaOf(target) && areaOf(target) !== areaOf(path) && areaOf(target) !== 'account'),
    )
    const paths = crossing.map(({ path }) => path)
    expect(Object.keys(crossings).filter((path) => !paths.includes(path))).toEqual([])
    expect(registries.filter((path) => !paths.includes(path))).toEqual([])
  })
})

test('no files import each other in a cycle, not for types either', () => {
  expect(findCycles(sources)).toEqual([])
})

test('cli imports only the helpers at the root of model', () => {
  expect(
    violations(({ path }, target) => {
      return stageOf(path) !== 'cli' || stageOf(target) !== 'model' || isAtRoot(target)
    }),
  ).toEqual([])
})

test('live and reconcile know drivers by their interfaces only', () => {
  expect(
    violations(({ path }, target) => {
      if (!['live', 'reconcile'].includes(stageOf(path)) || stageOf(target) !== 'drivers') return true
      return target.endsWith('/driver.ts')
    }),
  ).toEqual([])
})

test('driver.ts holds interfaces and the errors they throw, no implementation', () => {
  const interfaces = files.filter(({ path }) => stageOf(path) === 'drivers' && path.endsWith('/driver.ts'))
  expect(interfaces.length).toBeGreaterThan(0)
  expect(interfaces.filter(({ text }) => /^export (async )?function|^function/m.test(text)).map((f) => f.path)).toEqual(
    [],
  )
  expect(
    violations(
      ({ path }, target) =>
        stageOf(path) !== 'drivers' ||
        !path.endsWith('/driver.ts') ||
        stageOf(target) === 'model' ||
        target.endsWith('/driver.ts'),
    ),
  ).toEqual([])
})

test.each(Object.keys(confined))('%s is imported only where it belongs', (name) => {
  const importers = files.filter(({ text }) => new RegExp(`^import (?!type ).*from '${name}'`, 'm').test(text))
  expect(importers.map(({ path }) => path).filter((path) => !confined[name]!.test(path))).toEqual([])
})

test('connections are opened only by listed files, so that no tenant chooses their target', () => {
  const opens =
    /^import (?!type ).*\b(?:request|get|connect|createConnection|lookup|Resolver|resolve\w*)\b.*from '(?:node:(?:http2?|https|net|tls|dns(?:\/promises)?)|undici|ws)'|(?<![\w.])fetch\(/m
  const found = files.filter(({ path, text }) => !['edge', 'cli'].includes(stageOf(path)) && opens.test(text))
  expect(found.map(({ path }) => path).sort()).toEqual(Object.keys(outbound).sort())
})

test('the environment is read in one place', () => {
  expect(files.filter(({ text }) => text.includes('process.env')).map(({ path }) => path)).toEqual([
    'src/main/config.ts',
  ])
})

test('end-to-end tests do not import the source', () => {
  const importers = globSync('test/e2e/**/*.ts').filter((file) =>
    /from '(\.\.\/)+src\//.test(readFileSync(file, 'utf8')),
  )
  expect(importers).toEqual([])
})
