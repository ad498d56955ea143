// Compares the responses that tests get with the OpenAPI document.
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { type OpenApiDocument, openApiDocument } from '../../src/api/http/openapi.ts'
import type { Area } from '../../src/api/http/problem.ts'
import { type Route, withAliases } from '../../src/api/http/route.ts'

type Json = Record<string, unknown>

interface Response {
  $ref?: string
  content?: Record<string, { schema: Json }>
}

export interface Sent {
  status: number
  contentType: string
  body: string
}

/** Returns a function that throws when the response to a request is not documented. */
export function documentedResponses(area: Area, routes: readonly Route[]) {
  const document = openApiDocument(area, routes)
  const ajv = new Ajv2020({ strict: false, formats: { 'date-time': true, binary: true } })
  ajv.addSchema(document, 'document')
  const validators = new Map<string, ValidateFunction>()
  const operations = operationFinder(routes)

  return (method: string, url: string, sent: Sent): void => {
    const route = operations(method, URL.parse(url, 'http://localhost')?.pathname ?? '') // as it is sent, without dots
    if (!route || sent.status === 405) return
    const about = `${method} ${url} answers ${sent.status}`
    const content = contentOf(document, route, sent.status)
    if (content === 'undocumented') throw new Error(`${about}, which is not documented`)
    // A path that cannot be decoded belongs to no operation.
    if (sent.body === '') return
    const type = sent.contentType.split(';')[0]!
    const media = content?.[type]
    if (!media) throw new Error(`${about} with ${type || 'no content type'}, which is not documented`)
    if (type !== 'application/json') return
    const key = `${route.id} ${sent.status}`
    const validate =
      validators.get(key) ?? ajv.compile(JSON.parse(JSON.stringify(media.schema).replaceAll('"#/', '"document#/')))
    validators.set(key, validate)
    if (!validate(JSON.parse(sent.body))) throw new Error(`${about}: ${ajv.errorsText(validate.errors)}: ${sent.body}`)
  }
}

function contentOf(document: OpenApiDocument, { path, method }: Route, status: number) {
  const responses = document.paths[path]![method.toLowerCase()]!.responses as Record<string, Response>
  const response = responses[status]
  if (!response) return 'undocumented'
  const name = response.$ref?.split('/').at(-1)
  const resolved = name === undefined ? response : (document.components.responses[name] as Response)
  return resolved.content
}

function operationFinder(routes: readonly Route[]): (method: string, path: string) => Route | undefined {
  const known = routes
    .flatMap((route) => withAliases(route).map(({ path }) => ({ route, path })))
    .map(({ route, path }) => ({ route, path, pattern: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`) }))
  return (method, path) => {
    const matching = known.filter(({ route, pattern }) => route.method === method && pattern.test(path))
    return (matching.find((one) => one.path === path) ?? matching[0])?.route
  }
}
