import type { TObject, TSchema } from 'typebox'
import { type ComponentNames, shareRepeated } from './openapi-share.ts'
import { type Area, PlatformProblem, SandboxProblem } from './problem.ts'
import type { Route } from './route.ts'

type Json = Record<string, unknown>

export interface OpenApiDocument {
  openapi: '3.1.0'
  info: Json
  servers: Json[]
  security: Json[]
  tags: { name: string; description: string }[]
  paths: Record<string, Record<string, Json>>
  components: { securitySchemes: Json; schemas: Json; headers: Json; responses: Json; parameters: Json }
}

const titles: Record<Area, string> = { platform: 'Berth platform', sandbox: 'Berth sandboxes' }

const tags: Record<string, string> = {
  Postgres: 'Real PostgreSQL clusters. Success bodies are `{ "data": … }`.',
  Apps: 'An app groups machines that run user code, with their configuration and what routes to them.',
  Machines: 'Programs of an app, each in a box of its own made from an image, with a configuration that it keeps.',
  Secrets: 'What machines of an app see in their environment and nobody else. Kept encrypted.',
  Volumes: 'Disks of machines, which they survive, and snapshots of them. A volume is attached to one machine at most.',
  Addresses: 'Where an app answers. Without one it cannot be reached from outside.',
  'Network policies': 'What machines of an app may reach and be reached at, beside what comes through the edge.',
  Certificates: 'Host names of apps beside their own, and what proves them over TLS.',
  Services: 'Programs that the platform keeps running in a sandbox. Their state is read from their supervisor.',
  Organizations: 'Who owns things. Every token but root belongs to one.',
  Sandboxes: 'Persistent environments for programs, each with its own filesystem, processes and URL.',
  Checkpoints: 'The filesystem of a sandbox at a moment, to go back to.',
  Exec: 'Commands in a sandbox, over WebSockets and plain requests, on terminals and with pipes. They survive the connections of those who follow them, and end with the control plane.',
  Files: 'Files inside a sandbox. No path leads out of it. Refusals carry `code`, such as `ENOENT`, and `path`.',
  Ports: 'What listens inside a sandbox, and connections to it.',
  Tasks:
    'What asks for a sandbox to be kept awake, until it is over or expires. Sandboxes that run stay awake by themselves, so for now a task is a note that others can read.',
  Policies: 'What a sandbox may reach and use.',
  flyctl: 'What flyctl asks for besides the documented interface: the same things under other names.',
  Platform: 'What this platform is made of.',
  GraphQL: 'Another way to ask for apps, organizations, secrets and addresses.',
  Tokens: 'What a request proves its right with.',
}

/** Refusals that every operation has. */
const commonErrors: Record<number, string> = {
  400: 'The body is not a JSON object, or a parameter is not valid.',
  401: 'The token is missing, unknown, expired or revoked.',
  413: 'The body is larger than 1 MiB.',
  429: 'Too many requests; `Retry-After` says when to try again. Only when rate limits are on.',
  500: 'Something went wrong on our side; the log has more under the `fly-request-id`.',
  503: 'Something the platform needs is away for a moment; repeat the request after `Retry-After`.',
}

const idempotencyErrors: Record<number, string> = {
  409: 'A request with the same `Idempotency-Key` is still running.',
  422: 'The `Idempotency-Key` was used with another request.',
}

const descriptionOfSuccess = 'Done.'
const descriptionWithoutBody = 'Done; the answer has no body.'

const responseNames: ComponentNames = {
  [commonErrors[400]!]: 'BadRequest',
  [commonErrors[401]!]: 'Unauthorized',
  [commonErrors[413]!]: 'PayloadTooLarge',
  [commonErrors[429]!]: 'TooManyRequests',
  [commonErrors[500]!]: 'InternalError',
  [commonErrors[503]!]: 'Unavailable',
  [idempotencyErrors[409]!]: 'IdempotencyKeyInUse',
  [idempotencyErrors[422]!]: 'IdempotencyKeyReused',
  [descriptionWithoutBody]: 'Empty',
}

/**
 * The OpenAPI document of one API listener, derived from its route table. Schemas with a title become components, and so
 * do responses and parameters that occur more than once.
 */
export function openApiDocument(area: Area, routes: readonly Route[]): OpenApiDocument {
  const schemas: Json = {}
  const paths: OpenApiDocument['paths'] = {}
  for (const route of routes) {
    paths[route.path] ??= {}
    paths[route.path]![route.method.toLowerCase()] = operationOf(area, route, schemas)
  }
  const shared = shareRepeated(paths, responseNames)
  return {
    openapi: '3.1.0',
    info: {
      title: titles[area],
      version: '1.0',
      summary: 'A self-hosted cloud platform.',
      description:
        'Every operation takes a bearer token, unless it says otherwise. Every answer carries a unique `fly-request-id`.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/', description: 'This address.' }],
    security: [{ bearer: [] }],
    tags: [...new Set(routes.map((route) => route.tag))].map((name) => ({ name, description: tags[name]! })),
    paths: shared.paths,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', description: '`Authorization: Bearer <token>`' } },
      schemas,
      headers: routes.length === 0 ? {} : { 'fly-request-id': requestIdHeader },
      responses: shared.responses,
      parameters: shared.parameters,
    },
  }
}

function operationOf(area: Area, route: Route, schemas: Json): Json {
  const post = route.method === 'POST'
  const parameters = [
    ...parametersOf('path', route.params, schemas),
    ...parametersOf('query', route.query, schemas),
    ...(post ? [idempotencyParameter] : []),
  ]
  return {
    operationId: route.id,
    tags: [route.tag],
    summary: route.summary,
    ...(route.description ? { description: route.description } : {}),
    ...(route.tokenOptional || route.machineSelf ? { security: [{ bearer: [] }, {}] } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(route.body ? { requestBody: { required: true, content: jsonContent(refer(route.body, schemas)) } } : {}),
    ...(route.rawBody ? { requestBody: { content: { 'application/octet-stream': { schema: anyBytes } } } } : {}),
    responses: responsesOf(area, route, schemas),
  }
}

const requestIdHeader = { description: 'Names this request in the log.', schema: { type: 'string' } }

const idempotencyParameter = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description: 'Repeating the request with the same key and body within 24 hours answers the same and changes nothing.',
  schema: { type: 'string', minLength: 1, maxLength: 255 },
}

function parametersOf(place: 'path' | 'query', object: TObject | undefined, schemas: Json): Json[] {
  return Object.entries(object?.properties ?? {}).map(([name, schema]) => {
    const { description, ...rest } = refer(schema as TSchema, schemas)
    const required = place === 'path' || (object?.required as string[] | undefined)?.includes(name) === true
    return { name, in: place, required, ...(description ? { description } : {}), schema: rest }
  })
}

function responsesOf(area: Area, route: Route, schemas: Json): Json {
  const headers = { 'fly-request-id': { $ref: '#/components/headers/fly-request-id' } }
  const problem = refer(area === 'platform' ? PlatformProblem : SandboxProblem, schemas)
  const errors = { ...commonErrors, ...(route.method === 'POST' ? idempotencyErrors : {}), ...ownErrors(route) }
  const content = contentOf(route, schemas)
  const responses: Json = {
    [route.status]: {
      description: content ? descriptionOfSuccess : descriptionWithoutBody,
      headers,
      ...(content ? { content } : {}),
    },
  }
  if (route.otherStatus) responses[route.otherStatus] = responses[route.status]
  for (const [status, description] of Object.entries(errors)) {
    responses[status] = { description, headers, content: jsonContent(problem) }
  }
  return responses
}

const anyText = { type: 'string' }
const anyBytes = { type: 'string', format: 'binary' }

function contentOf({ response, contentType }: Route, schemas: Json): Json | undefined {
  const schema = response ? refer(response, schemas) : contentType === 'text/plain' ? anyText : anyBytes
  if (contentType) return { [contentType]: { schema } }
  return response && jsonContent(schema)
}

/** A status that both the key and the operation itself can cause says both. */
function ownErrors(route: Route): Record<number, string> {
  if (route.method !== 'POST') return route.errors
  return Object.fromEntries(
    Object.entries(route.errors).map(([status, text]) => {
      const shared = idempotencyErrors[Number(status)]
      return [status, shared ? `${text} Or: ${shared}` : text]
    }),
  )
}

function jsonContent(schema: Json): Json {
  return { 'application/json': { schema } }
}

/** The schema as plain JSON, every titled one inside it moved to the components and referred to by name. */
function refer(schema: TSchema, schemas: Json): Json {
  const plain = JSON.parse(JSON.stringify(schema)) as Json
  return hoist(plain, schemas) as Json
}

function hoist(value: unknown, schemas: Json): unknown {
  if (Array.isArray(value)) return value.map((item) => hoist(item, schemas))
  if (typeof value !== 'object' || value === null) return value
  const { title, refusal: _refusal, ...rest } = value as Json
  const inner = Object.fromEntries(Object.entries(rest).map(([key, item]) => [key, hoist(item, schemas)]))
  if (typeof title !== 'string') return inner
  schemas[title] = inner
  return { $ref: `#/components/schemas/${title}` }
}
