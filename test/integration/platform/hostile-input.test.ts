// Every operation is called with values that nobody sends by accident. Each must be answered, and not with a server error.
import { beforeEach, expect, test } from 'vitest'
import type { Route } from '../../../src/api/http/route.ts'
import {
  allRoutes,
  callRoute,
  createTenant,
  type Schema,
  sampleOf,
  type Tenant,
  urlOf,
} from '../../support/attack/tenant-world.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
let tenant: Tenant

beforeEach(async () => {
  tenant = await createTenant(platform, 'acme')
})

/** With fake drivers these run on the host itself. The end-to-end tests call them in a real box. */
const runsOnHost = (route: Route) => /\/(fs|exec)(\/|$)/.test(route.path)
/** Answered when the background loop has made the checkpoint, or by a database that the fake cluster does not have. */
const needsMore = (route: Route) => route.id === 'createCheckpoint' || /extensions$/i.test(route.path)
const routes = allRoutes.filter((route) => !runsOnHost(route) && !needsMore(route))

const strings = [
  '',
  ' ',
  '\0',
  'a\0b',
  'a\nb',
  '\u202egnp',
  '💥',
  "';drop table token;--",
  '../../etc/passwd',
  '/',
  '%00',
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  '-1',
  '0x10',
  '1e999',
  'NaN',
  '99999999999999999999999',
  '9007199254740993',
  '*',
  '{}',
  '[]',
  'null',
  '::1',
  '1970-01-01T00:00:00Z',
  '+275760-09-13T00:00:00.001Z',
  'P1Y',
  '9999999999h',
  'x'.repeat(5_000),
]
const numbers = ['-1', '0', '1.5', '2147483648', '9007199254740993', '1e15', '1e19', '1e308', '1e400', '-1e400', '-0']
const others = [
  'null',
  'true',
  '[]',
  '{}',
  '[[]]',
  '[null]',
  '[{}]',
  '{"__proto__":{"x":1}}',
  '{"constructor":{"prototype":{"x":1}}}',
  '{"a":null,"toString":"x","hasOwnProperty":1}',
  '{"":""}',
  '{"a\\u0000b":"c\\u0000d"}',
  '"\\ud800"',
  `${'['.repeat(60)}${']'.repeat(60)}`,
]
const texts = strings.map((text) => JSON.stringify(text))

/** A place in a body: the keys that lead to it, and its schema. */
interface Place {
  path: string[]
  schema: Schema
}

function placesOf(schema: Schema, path: string[] = [], depth = 0): Place[] {
  const inner = schema.anyOf ?? []
  const item = schema.items && depth < 4 ? placesOf(schema.items, [...path, '0'], depth + 1) : []
  const fields = Object.entries(schema.properties ?? {}).flatMap(([key, field]) =>
    depth < 4 ? placesOf(field, [...path, key], depth + 1) : [],
  )
  return [{ path, schema }, ...inner.flatMap((each) => placesOf(each, path, depth + 1)), ...item, ...fields]
}

/** The JSON text of `sample` with a raw text at this place. */
function withRaw(sample: unknown, path: string[], raw: string): string {
  const mark = '@@here@@'
  const copy = (typeof sample === 'object' ? structuredClone(sample) : {}) as Record<string, unknown>
  let holder: Record<string, unknown> = copy
  for (const [nth, key] of path.entries()) {
    if (nth === path.length - 1) holder[key] = mark
    else {
      const next = holder[key]
      const isHolder = typeof next === 'object' && next !== null
      if (!isHolder) holder[key] = path[nth + 1] === '0' ? [] : {}
      holder = holder[key] as Record<string, unknown>
    }
  }
  return JSON.stringify(copy).replaceAll(JSON.stringify(mark), () => raw)
}

/** For the many fields deep inside a machine's config. */
const fewValues = [
  'null',
  '""',
  '"a\\u0000b"',
  '"__proto__"',
  '-1',
  '1e19',
  '1e400',
  '[]',
  '[null]',
  '{"__proto__":{"x":1}}',
]

function rawValuesFor({ path, schema: { type, enum: values } }: Place): string[] {
  if (path.length > 1) return fewValues
  if (values) return [...others, '"__proto__"', '"constructor"', '1e308']
  if (type === 'string') return [...texts, '"\\ud800"', 'null', '{}', '1']
  if (type === 'integer' || type === 'number') return [...numbers, '""', 'null']
  if (type === 'boolean') return ['null', '"x"', '0', '{}']
  return [...others, '1e308', '"x"']
}

interface Call {
  url: string
  raw?: string
}

async function failuresOf(route: Route, calls: Call[]): Promise<string[]> {
  const failures: string[] = []
  for (const { url, raw } of calls) {
    const reply = await callRoute(platform, route, url, { token: tenant.token, ...(raw === undefined ? {} : { raw }) })
    if (reply.status >= 500 && reply.status !== 503)
      failures.push(`${reply.status} for ${url.slice(0, 300)} ${raw?.slice(0, 300) ?? ''}`)
  }
  return failures
}

/** The parameters without which the operation would wait. */
const fixedQuery: Record<string, Record<string, string>> = {
  waitForMachine: { timeout: '0' },
  readAppLog: { follow: 'false' },
  readMachineLog: { follow: 'false' },
  restoreCheckpoint: { wait: 'false' },
  getServiceLog: { duration: '1ms' },
  putService: { duration: '1ms' },
  startService: { duration: '1ms' },
  restartService: { duration: '1ms' },
}

const withQuery = (route: Route, url: string, extra: Record<string, string> = {}) => {
  const required = sampleOf((route.query ?? {}) as Schema, '', tenant) as Record<string, string>
  const search = new URLSearchParams({ ...(route.query ? required : {}), ...fixedQuery[route.id], ...extra })
  return search.size === 0 ? url : `${url}?${search}`
}

const sampleBody = (route: Route) => (route.body ? sampleOf(route.body as Schema, '', tenant) : undefined)

function hostileUrls(route: Route): Call[] {
  const raw = route.body ? { raw: JSON.stringify(sampleBody(route)) } : {}
  const paths = [...route.path.matchAll(/\{(\w+)\}/g)].flatMap(([, name]) =>
    [...strings, '..', '.', '%', 'a%2fb', 'x'.repeat(301)].map((value) => ({
      url: withQuery(route, urlOf(route, { ...tenant.params, [name!]: value })),
      ...raw,
    })),
  )
  const fixed = new Set(Object.keys(fixedQuery[route.id] ?? {}))
  const names = Object.keys((route.query as Schema | undefined)?.properties ?? {}).filter((name) => !fixed.has(name))
  const queries = names.flatMap((name) =>
    strings.map((value) => ({ url: withQuery(route, urlOf(route, tenant.params), { [name]: value }), ...raw })),
  )
  const broken = ['?%', '?%ff=%ff', '?a=%ed%a0%80', '?=', '?&&&', '?__proto__=x', '?a[b]=c', `?${'a&'.repeat(2_000)}`]
  const rest = broken.map((query) => ({ url: urlOf(route, { ...tenant.params, app_name: 'none' }) + query, ...raw }))
  return [...paths, ...queries, ...(fixed.size > 0 ? [] : rest)]
}

function hostileBodies(route: Route): Call[] {
  if (!route.body || route.id === 'updateMachine') return [] // its body is that of createMachine
  const url = withQuery(route, urlOf(route, tenant.params))
  const places = placesOf(route.body as Schema).filter(({ path }) => path.length > 0)
  return places.flatMap((place) =>
    rawValuesFor(place).map((raw) => ({ url, raw: withRaw(sampleBody(route), place.path, raw) })),
  )
}

/** Deletions come last, because they may remove what the others are called with. */
const order = (route: Route) => (route.method === 'DELETE' ? 1 : 0)
const byTag = Object.entries(Object.groupBy(routes, ({ tag }) => tag))

test.each(byTag)(
  'no operation of "%s" answers hostile input with a server error',
  async (_tag, tagged) => {
    const failures: string[] = []
    for (const route of tagged!.toSorted((a, b) => order(a) - order(b))) {
      failures.push(...(await failuresOf(route, [...hostileBodies(route), ...hostileUrls(route)])))
    }
    expect(failures).toEqual([])
  },
  600_000,
)
