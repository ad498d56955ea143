import type { TObject, TSchema } from 'typebox'
import { isNeed, refer } from './openapi-schema.ts'
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
  Postgres: 'Managed PostgreSQL clusters. Successful responses have the form `{ "data": … }`.',
  Apps: 'An app groups machines that run user code, with their configuration and routing.',
  Machines: 'Isolated processes of an app, each started from an image with a versioned configuration.',
  Secrets: 'Environment variables that only the machines of an app can read. Stored encrypted.',
  Volumes: 'Persistent disks for machines, and their snapshots. A volume is attached to at most one machine.',
  Addresses: 'The IP addresses of apps. An app without one is not reachable from outside.',
  'Network policies': 'Firewall rules for the machines of an app. Requests through the edge are not affected.',
  Certificates: 'Custom host names of apps and their TLS certificates.',
  Services: 'Supervised processes in a sandbox.',
  Organizations: 'The owners of resources. Every token except root tokens belongs to one.',
  Sandboxes: 'Persistent environments for programs, each with its own filesystem, processes and URL.',
  Checkpoints: 'Saved states of the file system of a sandbox, which can be restored.',
  Exec: 'Commands in a sandbox, over WebSockets or plain requests, with or without a terminal. They continue when a client disconnects, and end when the control plane stops.',
  Files: 'Files inside a sandbox; paths cannot leave it. Errors have a `code`, such as `ENOENT`, and a `path`.',
  Ports: 'The open ports of a sandbox, and connections to them.',
  Tasks:
    'A task keeps a sandbox awake until it ends or expires. Running sandboxes are not suspended at present, so a task is only informative.',
  Policies: 'Network access, privileges and limits of a sandbox.',
  flyctl: 'Further operations that flyctl uses: views of the same resources in another format.',
  Platform: 'Properties of this installation.',
  GraphQL: 'A GraphQL interface to apps, organizations, secrets and addresses.',
  Tokens: 'Credentials for requests.',
}

/** The errors that every operation has. */
const commonErrors: Record<number, string> = {
  400: 'The body is not a JSON object, or a parameter is not valid.',
  401: 'The token is missing, unknown, expired or revoked.',
  413: 'The body is larger than 1 MiB.',
  429: 'Too many requests, when rate limits are enabled, or too many open connections of the organization; retry after `Retry-After`.',
  500: 'Internal error; the log has details under the `fly-request-id`.',
  503: 'A part of the platform is temporarily unavailable; retry after `Retry-After`.',
}

/** The Postgres operations answer 401 instead. */
const caveatErrors: Record<number, string> = { 403: 'The caveats of the token do not permit this.' }

const idempotencyErrors: Record<number, string> = {
  409: 'A request with the same `Idempotency-Key` is still running.',
  422: 'A quota of the organization would be exceeded (the code is then `quota_exceeded`), or the `Idempotency-Key` was used with a different request.',
}

const descriptionOfSuccess = 'Success.'
const descriptionWithoutBody = 'Success; the response has no body.'

const responseNames: ComponentNames = {
  [commonErrors[400]!]: 'BadRequest',
  [commonErrors[401]!]: 'Unauthorized',
  [caveatErrors[403]!]: 'NotPermitted',
  [commonErrors[413]!]: 'PayloadTooLarge',
  [commonErrors[429]!]: 'TooManyRequests',
  [commonErrors[500]!]: 'InternalError',
  [commonErrors[503]!]: 'Unavailable',
  [idempotencyErrors[409]!]: 'IdempotencyKeyInUse',
  [idempotencyErrors[422]!]: 'QuotaExceeded',
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
        'Operations require a bearer token unless stated otherwise. Every response has a unique `fly-request-id`.',
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
    ...parametersOf('header', route.headers, schemas),
    ...(post ? [idempotencyParameter] : []),
  ]
  return {
    operationId: route.id,
    tags: [route.tag],
    summary: route.summary,
    ...(route.description ? { description: route.description } : {}),
    ...(route.tokenOptional || route.machineSelf ? { security: [{ bearer: [] }, {}] } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...requestBodyOf(route, schemas),
    responses: responsesOf(area, route, schemas),
  }
}

function requestBodyOf({ body, rawBody }: Route, schemas: Json): Json {
  if (rawBody) return { requestBody: { content: { 'application/octet-stream': { schema: anyBytes } } } }
  if (!body) return {}
  const required = (body.required ?? []).length > 0 || (body as { anyOf?: unknown[] }).anyOf?.some(isNeed)
  return { requestBody: { ...(required ? { required } : {}), content: jsonContent(refer(body, schemas)) } }
}

const requestIdHeader = { description: 'Identifies the request in the log.', schema: { type: 'string' } }

const idempotencyParameter = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'A repeated request with the same key and body within 24 hours has no further effect and returns the same response.',
  schema: { type: 'string', minLength: 1, maxLength: 255 },
}

function parametersOf(place: 'path' | 'query' | 'header', object: TObject | undefined, schemas: Json): Json[] {
  return Object.entries(object?.properties ?? {}).map(([name, schema]) => {
    const { description, ...rest } = refer(schema as TSchema, schemas)
    const required = place === 'path' || (object?.required as string[] | undefined)?.includes(name) === true
    return { name, in: place, required, ...(description ? { description } : {}), schema: rest }
  })
}

function responsesOf(area: Area, route: Route, schemas: Json): Json {
  const headers = { 'fly-request-id': { $ref: '#/components/headers/fly-request-id' } }
  const problem = refer(area === 'platform' ? PlatformProblem : SandboxProblem, schemas)
  const errors = {
    ...commonErrors,
    ...(route.tag === 'Postgres' ? {} : caveatErrors),
    ...(route.method === 'POST' ? idempotencyErrors : {}),
    ...ownErrors(route),
  }
  const responses: Json = { [route.status]: success(route, headers, contentOf(route, schemas)) }
  if (route.otherStatus) {
    // With 202 a stream is not awaited: the response is its first line.
    const content = contentOf(route.otherStatus === 202 ? { response: route.response } : route, schemas)
    responses[route.otherStatus] = success(route, headers, content)
  }
  for (const [status, description] of Object.entries(errors)) {
    responses[status] = { description, headers, content: jsonContent(problem) }
  }
  return responses
}

function success({ responseHeaders = {} }: Route, common: Json, content: Json | undefined): Json {
  const own = Object.entries(responseHeaders).map(([name, description]) => [
    name,
    { description, schema: { type: 'string' } },
  ])
  return {
    description: content ? descriptionOfSuccess : descriptionWithoutBody,
    headers: { ...common, ...Object.fromEntries(own) },
    ...(content ? { content } : {}),
  }
}

const anyText = { type: 'string' }
const anyBytes = { type: 'string', format: 'binary' }

type Contents = Pick<Route, 'response' | 'contentType' | 'lines'>

function contentOf({ response, contentType, lines }: Contents, schemas: Json): Json | undefined {
  const schema = response ? refer(response, schemas) : contentType === 'text/plain' ? anyText : anyBytes
  if (contentType) return { [contentType]: { schema } }
  if (!response) return undefined
  return { ...jsonContent(schema), ...(lines ? { 'application/x-ndjson': { schema: refer(lines, schemas) } } : {}) }
}

/** Combines the descriptions of a status that both the operation and its key can cause. */
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
