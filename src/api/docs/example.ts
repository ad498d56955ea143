import { exampleChoiceOf, exampleFlagOf, exampleNumberOf, exampleTextOf, isTrouble } from './example-value.ts'
import { type Content, type Json, type Operation, type Shape, text } from './shape.ts'

/** `urlVariable` is the shell variable that holds the address. */
export function curlOf({ method, path, parameters, body, needsToken }: Operation, urlVariable: string): string {
  const address = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const shape = parameters.find((parameter) => parameter.place === 'path' && parameter.name === name)?.shape
    return encodeURIComponent(String(shape ? exampleOf(shape, name, true) : name))
  })
  const query = parameters
    .filter(({ place, name, required }) => place === 'query' && (required || commonFields.test(name)))
    .map(({ name, shape }) => `${encodeURIComponent(name)}=${encodeURIComponent(String(exampleOf(shape, name, true)))}`)
  const headers = parameters.filter(({ place, required }) => place === 'header' && required)
  const verb = method === 'get' ? '' : ` -X ${method.toUpperCase()}`
  return [
    `curl${verb} "$${urlVariable}${address}${query.length > 0 ? `?${query.join('&')}` : ''}"`,
    ...(needsToken ? ['-H "Authorization: Bearer $BERTH_TOKEN"'] : []),
    ...headers.map(({ name, shape }) => `-H ${shellQuoted(`${name}: ${exampleOf(shape, name, true)}`)}`),
    ...bodyArguments(body),
  ].join(' \\\n  ')
}

function bodyArguments(body: Content | undefined): string[] {
  if (!body) return []
  const type = `-H ${shellQuoted(`Content-Type: ${body.mediaType}`)}`
  if (!body.mediaType.endsWith('json')) return [type, '--data-binary @file']
  return [type, `-d ${shellQuoted(JSON.stringify(exampleOf(body.shape, '', true), null, 2)).replaceAll('\n', '\n  ')}`]
}

function shellQuoted(value: string): string {
  return `'${value.replaceAll("'", "'\\''")}'`
}

/** Optional fields that nearly every caller sends, so that examples include them. */
const commonFields = /^(name|app_name|org_slug|image|cmd)$/

/** Returns a valid value; a minimal one omits optional fields that callers normally omit. */
export function exampleOf(shape: Shape, name: string, minimal: boolean): unknown {
  const { schema, options, items, fields } = shape
  const type = shape.type.split(' or ')[0]
  const given = [schema.const, (schema.examples as unknown[] | undefined)?.[0], schema.example, schema.default]
  const value = given.find((candidate) => candidate !== undefined && candidate !== null)
  if (value !== undefined) return value
  if (Array.isArray(schema.enum)) return exampleChoiceOf(schema.enum)
  if (options[0] && fields.length === 0) return exampleOf(options[0], name, minimal)
  if (type === 'map') return items && !minimal ? { key: exampleOf(items, 'value', minimal) } : {}
  if (items) return [exampleOf(items, name.replace(/s$/, ''), minimal)]
  if (type === 'object') return exampleObject(shape, minimal)
  if (type === 'boolean') return exampleFlagOf(name)
  if (type === 'integer' || type === 'number') return exampleNumber(schema, name)
  return type === 'string' ? exampleText(shape, name) : null
}

function exampleObject({ fields, options, needs }: Shape, minimal: boolean): Json {
  const needed = needs[0] ?? []
  const wanted = fields.filter(({ name, required, shape }) => {
    if (shape.recursive || (isTrouble(name) && !required)) return required
    return !minimal || required || needed.includes(name) || (commonFields.test(name) && !isAlias(shape))
  })
  const own = Object.fromEntries(
    wanted.map(({ name, shape }) => [name, shape.nullable && isTrouble(name) ? null : exampleOf(shape, name, minimal)]),
  )
  return options[0] ? { ...own, ...exampleObject(options[0], minimal) } : own
}

function isAlias({ description }: Shape): boolean {
  return description.startsWith('Alias of `')
}

function exampleNumber({ minimum, maximum }: Json, name: string): number {
  const preferred = exampleNumberOf(name)
  return Math.min(Math.max(preferred, Number(minimum ?? preferred)), Number(maximum ?? Number.POSITIVE_INFINITY))
}

const formatExamples: Record<string, string> = {
  'date-time': '2026-01-01T00:00:00Z',
  date: '2026-01-01',
  uuid: '6f1c2a52-8f0e-4c55-9d0b-2f6f0c1b7a3e',
  uri: 'https://example.com',
  email: 'ada@example.com',
  ipv4: '192.0.2.10',
  ipv6: '2001:db8::10',
}

function exampleText({ schema, description }: Shape, name: string): string {
  const { format, pattern, minLength, maxLength } = schema
  const quoted = /(?:such as|for example) `([^`]+)`/.exec(description)?.[1]
  const byName = exampleTextOf(name)
  const candidates = [
    quoted,
    formatExamples[text(format)],
    byName,
    'example',
    'a1',
    '1',
    '/data',
    '2026-01-01T00:00:00Z',
  ]
  const known = candidates.filter((candidate) => candidate !== undefined)
  const fits = typeof pattern === 'string' ? known.find((candidate) => new RegExp(pattern).test(candidate)) : known[0]
  return (fits ?? 'example').padEnd(Number(minLength ?? 0), 'x').slice(0, Number(maxLength ?? 200))
}
