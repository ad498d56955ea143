import { createHash } from 'node:crypto'
import { Value } from 'typebox/value'
import { expect, test } from 'vitest'
import { type OpenApiDocument, openApiDocument } from '../http/openapi.ts'
import { platformRoutes, sandboxRoutes } from '../routes.ts'
import { exampleOf } from './example.ts'
import { docsHeaders, docsPage } from './page.ts'
import { operationsOf } from './shape.ts'

type Json = Record<string, unknown>

const platform = openApiDocument('platform', platformRoutes)
const platformPage = docsPage(platform)

function documentWith(operation: Json, schemas: Json = {}): OpenApiDocument {
  return {
    ...platform,
    tags: [{ name: 'Things', description: 'All things.' }],
    paths: {
      '/v1/things/{thing_id}': { post: { operationId: 'makeThing', tags: ['Things'], responses: {}, ...operation } },
    },
    components: { ...platform.components, schemas },
  }
}

function pageWithBody(schema: Json, schemas: Json = {}): string {
  return docsPage(documentWith({ requestBody: { content: { 'application/json': { schema } } } }, schemas))
}

function articleOf(page: string, id: string): string {
  const start = page.indexOf(`<article class="operation" id="${id}"`)
  return start < 0 ? '' : page.slice(start, page.indexOf('</article>', start))
}

function cellsOf(page: string, field: string): string {
  return page.split('<tr').find((row) => row.includes(`>${field}</code>`)) ?? ''
}

function curlOf(page: string, id: string): string {
  return /<code class="all">(.*?)<\/code>/s.exec(articleOf(page, id))?.[1] ?? ''
}

test.each(platformRoutes)(
  '$id has an anchor, a link to it, its method and its path',
  ({ id, method, path, summary }) => {
    const article = articleOf(platformPage, id)
    expect(article).toContain(`>${method}</span>`)
    expect(article).toContain(`<code>${path}</code>`)
    expect(article).toContain(summary)
    expect(platformPage).toContain(`<a href="#${id}">`)
  },
)

test('anchors are unique and every link has its target', () => {
  const page = platformPage.split('<script')[0]!
  const ids = [...page.matchAll(/ id="([^"]+)"/g)].map((match) => match[1])
  const links = [...page.matchAll(/href="#([^"]+)"/g)].map((match) => match[1])
  expect(new Set(ids).size).toBe(ids.length)
  expect(links.filter((link) => !ids.includes(link))).toEqual([])
})

test('the page runs its own script only and loads nothing', () => {
  const page = platformPage
  const [before, script, after] = page.split(/<script type="module">|<\/script>/)
  expect(`${before}${after}`).not.toMatch(/<script|\ssrc=|\sstyle=|\son\w+=|@import|url\(/i)
  expect(page).not.toMatch(/href\s*=\s*["']?(https?:)?\/\//i)
  const style = /<style>(.*?)<\/style>/s.exec(page)![1]!
  const hash = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`
  const policy = docsHeaders()['content-security-policy']!.split('; ')
  expect(policy).toEqual(expect.arrayContaining(["default-src 'none'", "connect-src 'self'", "form-action 'none'"]))
  expect(policy.find((one) => one.startsWith('script-src'))).toBe(`script-src ${hash(script!)}`)
  expect(policy.find((one) => one.startsWith('style-src'))).toBe(`style-src ${hash(style)}`)
})

test('text from the document is escaped wherever it appears', () => {
  const evil = '<script>alert(1)</script>"\'&'
  const schema = {
    type: 'object',
    description: evil,
    required: [evil],
    properties: { [evil]: { type: 'string', description: evil, default: evil, examples: [evil], pattern: evil } },
  }
  const content = { [evil]: { schema } }
  const operation = {
    operationId: evil,
    summary: evil,
    description: `${evil} \`${evil}\``,
    tags: [evil],
    parameters: [{ name: evil, in: evil, description: evil, schema: { enum: [evil] } }],
    requestBody: { content },
    responses: { 200: { description: evil, content }, 400: { description: evil, content } },
  }
  const document = {
    ...documentWith(operation),
    info: { title: evil, version: evil, summary: evil, description: evil },
  }
  const page = docsPage({ ...document, tags: [{ name: evil, description: evil }] })
  expect(page.match(/<script/g)).toHaveLength(1)
  expect(page).not.toContain('"\'&')
  expect(page).toContain('&lt;script&gt;')
})

test('backticks become code', () => {
  const page = docsPage(documentWith({ description: 'Give `a<b` or leave a lone ` there.' }))
  expect(page).toContain('<p>Give <code>a&lt;b</code> or leave a lone ` there.</p>')
})

test('a schema that contains itself is expanded once', () => {
  const node = { $ref: '#/components/schemas/Node' }
  const Node = {
    type: 'object',
    required: ['label', 'parent'],
    properties: { label: { type: 'string' }, parent: node, children: { type: 'array', items: node } },
  }
  const page = pageWithBody(node, { Node })
  expect(page.match(/>label<\/code>/g)).toHaveLength(1)
  expect(cellsOf(page, 'parent')).toContain('the fields of <code>Node</code>')
  expect(cellsOf(page, 'children')).toContain('the fields of <code>Node</code>')
})

test('schemas that contain each other are not expanded for ever', () => {
  const both = { a: { $ref: '#/components/schemas/A' }, b: { $ref: '#/components/schemas/B' } }
  const page = pageWithBody(both.a, {
    A: { type: 'object', required: ['a', 'b'], properties: both },
    B: { allOf: [both.a, { type: 'object', properties: both }] },
  })
  expect(page).toContain('the fields of <code>A</code>')
})

test('fields are found through references and indented below the one they belong to', () => {
  const page = pageWithBody(
    { type: 'object', required: ['guest'], properties: { guest: { $ref: '#/components/schemas/Guest' } } },
    { Guest: { type: 'object', properties: { disks: { type: 'array', items: { properties: { size: {} } } } } } },
  )
  expect(cellsOf(page, 'guest')).toContain('class="d0"')
  expect(cellsOf(page, 'disks')).toContain('class="d1"')
  expect(cellsOf(page, 'disks')).toContain('array of object')
  expect(cellsOf(page, 'size')).toContain('class="d2"')
})

test.each([
  [{ type: 'integer', minimum: 1, maximum: 1000 }, '1 to 1000'],
  [{ type: 'integer', minimum: 0 }, 'at least 0'],
  [{ type: 'string', maxLength: 63 }, 'at most 63 characters'],
  [{ type: 'string', minLength: 8, maxLength: 8 }, 'exactly 8 characters'],
  [{ type: 'string', pattern: '^a<b$' }, 'matches <code>^a&lt;b$</code>'],
  [{ enum: ['on', 'off'] }, 'One of <code>on</code>, <code>off</code>'],
  [{ anyOf: [{ const: 'on' }, { const: 'off' }] }, 'One of <code>on</code>, <code>off</code>'],
  [{ anyOf: [{ type: 'string', maxLength: 9 }, { type: 'null' }] }, 'string or null'],
  [{ type: 'string', format: 'date-time' }, 'string (date-time)'],
  [{ type: 'array', items: { type: 'string', maxLength: 5 } }, 'each: at most 5 characters'],
  [{ type: 'object', additionalProperties: { type: 'string' } }, 'map of string'],
  [{ type: 'boolean', default: false }, 'default <code>false</code>'],
])('%o is described as %s', (schema, words) => {
  expect(cellsOf(pageWithBody({ type: 'object', properties: { it: schema } }), 'it')).toContain(words)
})

test('the options of a union are listed one after the other', () => {
  const page = pageWithBody({
    oneOf: [
      { type: 'object', description: 'By name', properties: { name: { type: 'string' } } },
      { type: 'object', description: 'By number', properties: { number: { type: 'integer' } } },
    ],
  })
  expect(page.indexOf('Either: By name')).toBeLessThan(page.indexOf('Or: By number'))
})

test('alternatives that only require fields are described as such and satisfied by the example', () => {
  const page = pageWithBody({
    type: 'object',
    properties: { colour: { type: 'string' }, shape: { type: 'string' } },
    anyOf: [{ required: ['colour'] }, { required: ['shape'] }],
  })
  expect(page).toContain('Also required: <code>colour</code> or <code>shape</code>.')
  expect(curlOf(page, 'makeThing')).toContain('{\n    &quot;colour&quot;: &quot;example&quot;\n  }')
})

test('the curl example has the placeholders, the path filled in, and only what a caller would send', () => {
  const page = platformPage
  expect(curlOf(page, 'createApp')).toBe(`curl -X POST &quot;$BERTH_URL/v1/apps&quot; \\
  -H &quot;Authorization: Bearer $BERTH_TOKEN&quot; \\
  -H &#39;Content-Type: application/json&#39; \\
  -d &#39;{
    &quot;app_name&quot;: &quot;demo&quot;,
    &quot;org_slug&quot;: &quot;personal&quot;
  }&#39;`)
  expect(curlOf(page, 'getApp')).toContain('curl &quot;$BERTH_URL/v1/apps/demo&quot;')
  expect(curlOf(page, 'listApps')).toContain('/v1/apps?org_slug=personal&quot;')
})

test.each([
  ['createCluster', { org_slug: 'personal', name: 'shop', plan: 'basic', pg_major_version: '17' }],
  ['restoreCluster', { pitr_time: '2026-01-01T12:00:00Z', name: 'shop-again' }],
  ['createMachine', { config: { image: 'docker.io/library/nginx:1.29' } }],
  ['changeSecrets', { values: { API_KEY: 'abc' } }],
  ['allocateIp', { type: 'shared_v4' }],
])('the example of %s is realistic', (id, body) => {
  const sent = curlOf(platformPage, id)
    .split('-d &#39;')[1]!
    .replace(/&#39;$/, '')
    .replaceAll('&quot;', '"')
  expect(JSON.parse(sent)).toEqual(body)
})

const bodies = [...platformRoutes, ...sandboxRoutes].flatMap(({ id, body }) => (body ? [[id, body] as const] : []))

const operations = [platform, openApiDocument('sandbox', sandboxRoutes)].flatMap(operationsOf)

test.each(bodies)('the example of %s matches its schema', (id, body) => {
  const operation = operations.find((one) => one.id === id)
  const example = exampleOf(operation!.body!.shape, '', true)
  expect(Value.Errors(body, example)).toEqual([])
})

test('a quote in an example does not end the shell argument', () => {
  const page = pageWithBody({ type: 'object', examples: [{ note: "it's" }] })
  expect(curlOf(page, 'makeThing')).toContain('it&#39;\\&#39;&#39;s')
})

test('an example obeys the bounds of its schema', () => {
  const page = pageWithBody({
    type: 'object',
    required: ['count', 'colour', 'code'],
    properties: {
      count: { type: 'integer', minimum: 1024 },
      colour: { type: 'string', minLength: 10 },
      code: { type: 'string', pattern: '^[0-9]+$' },
    },
  })
  const curl = curlOf(page, 'makeThing').replaceAll('&quot;', '"')
  expect(curl).toContain('"count": 1024')
  expect(curl).toContain('"colour": "examplexxx"')
  expect(curl).toContain('"code": "1"')
})

test('errors are listed with their causes', () => {
  const article = articleOf(docsPage(platform), 'deleteApp')
  expect(article).toContain('No app has this name.')
  expect(article).toContain('<span class="status">422</span>')
})

test('headings do not skip a level', () => {
  const levels = [...docsPage(platform).matchAll(/<h([1-6])/g)].map((match) => Number(match[1]))
  expect(levels[0]).toBe(1)
  expect(levels.filter((level, at) => at > 0 && level > levels[at - 1]! + 1)).toEqual([])
})

test('the same document gives the same page', () => {
  expect(docsPage(structuredClone(platform))).toBe(docsPage(platform))
})

test('a document without operations is rendered as well', () => {
  expect(docsPage(openApiDocument('sandbox', []))).toContain('<h1>Berth sandboxes API</h1>')
})

test('examples name the setting with the address', () => {
  const page = docsPage(openApiDocument('sandbox', sandboxRoutes), 'BERTH_SANDBOX_URL')
  expect(curlOf(page, 'createSandbox')).toContain('&quot;$BERTH_SANDBOX_URL/v1/sandboxes&quot;')
  expect(page).not.toContain('$BERTH_URL')
})
