// What generators of clients need from the OpenAPI documents.
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { expect, test } from 'vitest'
import { generatedFiles } from '../../scripts/generated.ts'
import { platformRoutes, sandboxRoutes } from '../../src/api/routes.ts'

type Json = Record<string, unknown>

interface Media {
  schema: Json
  example?: unknown
}

interface Operation {
  operationId: string
  parameters?: Json[]
  requestBody?: { required?: boolean; content: Record<string, Media> }
  responses: Record<string, { $ref?: string; content?: Record<string, Media> }>
}

const files = generatedFiles()
const documents = ['openapi.json', 'openapi-sandbox.json'].map((file) => {
  const document = JSON.parse(files[file]!)
  const paths: Record<string, Record<string, Operation>> = document.paths
  const operations = Object.values(paths).flatMap((item) => Object.values(item))
  return { file, document, operations, schemas: document.components.schemas as Record<string, Json> }
})

function validator(document: object, schema: Json): ValidateFunction {
  const ajv = new Ajv2020({ strict: false, formats: { 'date-time': true, binary: true } })
  ajv.addSchema(document, 'document')
  return ajv.compile(JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"document#/')))
}

/** Calls `visit` with every schema inside a schema and the name that generators give it when it has none. */
function walk(schema: Json, name: string, visit: (schema: Json, name: string) => void): void {
  if (schema.$ref) return
  visit(schema, name)
  const inner = (one: unknown, suffix: string) => {
    if (typeof one === 'object' && one !== null) walk(one as Json, name + suffix, visit)
  }
  for (const [key, one] of Object.entries((schema.properties ?? {}) as Json)) inner(one, pascal(key))
  inner(schema.items, 'Item')
  inner(schema.additionalProperties, 'AdditionalProperty')
  for (const one of (schema.anyOf ?? []) as Json[]) inner(one, '')
}

function pascal(text: string): string {
  const words = text.split(/[^A-Za-z0-9]+/).map((word) => `${word.charAt(0).toUpperCase()}${word.slice(1)}`)
  return words.join('')
}

function everySchema({ operations, schemas }: (typeof documents)[number], visit: (schema: Json, name: string) => void) {
  for (const [name, schema] of Object.entries(schemas)) walk(schema, name, visit)
  for (const { operationId, requestBody, responses } of operations) {
    for (const { schema } of Object.values(requestBody?.content ?? {}))
      walk(schema, `${pascal(operationId)}Body`, visit)
    for (const [status, { content = {} }] of Object.entries(responses)) {
      for (const { schema } of Object.values(content)) walk(schema, `${pascal(operationId)}Response${status}`, visit)
    }
  }
}

test.each(documents)('every JSON body in $file has an example that matches its schema', ({ document, operations }) => {
  for (const { operationId, requestBody, responses } of operations) {
    const successes = Object.entries(responses).filter(([status]) => status < '3')
    for (const { content = {} } of [requestBody ?? {}, ...successes.map(([, response]) => response)]) {
      const media = content['application/json']
      if (!media) continue
      const isValid = validator(document, media.schema)
      expect(isValid(media.example), `${operationId}: ${JSON.stringify(isValid.errors)}`).toBe(true)
    }
  }
})

test.each(documents)('no example in $file is a mere placeholder', ({ operations }) => {
  const texts = JSON.stringify(operations).match(/"[^"]+":\[?"example"/g)
  expect(texts).toBeNull()
})

test.each(documents)('no schema without a name in $file gets the name of another one', (document) => {
  const names = Object.keys(document.schemas)
  const given = new Set<string>()
  everySchema(document, (schema, name) => {
    if (names.includes(name) && schema !== document.schemas[name]) given.add(name)
  })
  expect([...given]).toEqual([])
})

test.each(documents)('$file has no alternatives without a type', (document) => {
  const wrong: string[] = []
  everySchema(document, ({ anyOf, enum: values, type, patternProperties }, name) => {
    if ((anyOf as Json[] | undefined)?.some((one) => !one.type && !one.$ref && !one.anyOf)) wrong.push(name)
    if (values && !type) wrong.push(name)
    if (patternProperties) wrong.push(name)
  })
  expect(wrong).toEqual([])
})

test.each(documents)('a body in $file is required exactly when it has required fields', ({ operations, schemas }) => {
  for (const { operationId, requestBody } of operations) {
    const schema = requestBody?.content['application/json']?.schema
    if (!schema) continue
    const resolved = schemas[String(schema.$ref).replace(/.*\//, '')] ?? schema
    const required = ((resolved.required as string[] | undefined) ?? []).length > 0
    const needsOne = ['flyctlCreateUserV1', 'flyctlCreateUserV2'].includes(operationId)
    expect(requestBody.required === true, operationId).toBe(required || needsOne)
  }
})

test('streams of lines are documented as such', () => {
  const operations = documents.flatMap((document) => document.operations)
  const streams = operations.filter(({ responses }) => responses[200]?.content?.['application/x-ndjson'])
  expect(streams.map(({ operationId }) => operationId).sort()).toEqual([
    'createCheckpoint',
    'getServiceLog',
    'killExecSession',
    'listSandboxes',
    'putService',
    'readAppLog',
    'readMachineLog',
    'restartService',
    'restoreCheckpoint',
    'startService',
    'stopService',
  ])
})

test('every response that is streamed has a documented content', () => {
  const streamed = [...platformRoutes, ...sandboxRoutes].filter(({ streams }) => streams)
  const byId = new Map(documents.flatMap(({ operations }) => operations.map((one) => [one.operationId, one] as const)))
  for (const { id, status } of streamed) expect(byId.get(id)?.responses[status]?.content, id).toBeDefined()
})

test('a leased machine is changed with the nonce of the lease, as a documented header', () => {
  const operations = documents.flatMap((document) => document.operations)
  const named = operations.filter(({ parameters = [] }) => JSON.stringify(parameters).includes('lease-nonce'))
  const ids = named.map(({ operationId }) => operationId)
  expect(ids).toEqual(expect.arrayContaining(['updateMachine', 'deleteMachine', 'stopMachine', 'releaseMachineLease']))
})
