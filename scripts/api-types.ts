// TypeScript types for the answers of the API, made from the OpenAPI documents. The CLI reads them; it may not import
// the code that produces the answers.
import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { OpenApiDocument } from '../src/api/http/openapi.ts'

interface Schema {
  $ref?: string
  type?: string | string[]
  enum?: unknown[]
  anyOf?: Schema[]
  items?: Schema
  properties?: Record<string, Schema>
  required?: string[]
  additionalProperties?: Schema | boolean
}

interface Operation {
  operationId: string
  responses: Record<string, { content?: Record<string, { schema: Schema }> }>
}

/** The named schemas that the CLI uses. Schemas they refer to are added. */
const platformSchemas = [
  'App',
  'AppPage',
  'CertificateDetail',
  'CertificateList',
  'ChangedSecrets',
  'CreatedApp',
  'ExtendedVolume',
  'IpAssignmentList',
  'IssuedToken',
  'Lease',
  'LogLine',
  'Machine',
  'MachineProcess',
  'OrganizationList',
  'PostgresAdoption',
  'PostgresAuthority',
  'PostgresBackup',
  'PostgresCluster',
  'PostgresClusterSummary',
  'PostgresCredentials',
  'PostgresDatabase',
  'PostgresDiscardedData',
  'PostgresDrill',
  'PostgresImport',
  'PostgresExtension',
  'PostgresLog',
  'PostgresUser',
  'QuotasList',
  'SecretList',
  'Snapshot',
  'TokenList',
]
const sandboxSchemas = [
  'Checkpoint',
  'CheckpointEvent',
  'ExecSessionList',
  'FileList',
  'NetworkPolicy',
  'SandboxPage',
  'Service',
  'ServiceEvent',
  'WrittenFile',
]

/** Operations whose success response has no schema name. The type is named after the operation. */
const platformOperations = ['execInMachine', 'waitForMachine']

export function apiTypesSource(platform: OpenApiDocument, sandbox: OpenApiDocument): string {
  const types = new Map<string, string>()
  for (const name of platformSchemas) addSchema(types, platform, name)
  for (const id of platformOperations) addResponse(types, platform, id)
  for (const name of sandboxSchemas) addSchema(types, sandbox, name)
  const declarations = [...types].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, text]) => text)
  const header = '// Generated from openapi.json and openapi-sandbox.json by "make generate". Do not edit.'
  return format([header, ...declarations].join('\n\n'))
}

function addSchema(types: Map<string, string>, document: OpenApiDocument, name: string): void {
  const schema = document.components.schemas[name] as Schema | undefined
  if (!schema) throw new Error(`the API has no schema ${name}`)
  addType(types, document, name, schema)
}

function addResponse(types: Map<string, string>, document: OpenApiDocument, operationId: string): void {
  const operations = Object.values(document.paths).flatMap((methods) =>
    Object.values(methods),
  ) as unknown as Operation[]
  const operation = operations.find((each) => each.operationId === operationId)
  const success = Object.entries(operation?.responses ?? {}).find(([status]) => status.startsWith('2'))?.[1]
  const schema = success?.content?.['application/json']?.schema
  if (!schema) throw new Error(`the API has no operation ${operationId} that answers with JSON`)
  addType(types, document, `${operationId[0]!.toUpperCase()}${operationId.slice(1)}Response`, schema)
}

function addType(types: Map<string, string>, document: OpenApiDocument, name: string, schema: Schema): void {
  const text = schema.properties
    ? `export interface ${name} ${typeOf(schema)}`
    : `export type ${name} = ${typeOf(schema)}`
  const known = types.get(name)
  if (known === text) return
  if (known) throw new Error(`the platform and the sandbox API have different schemas named ${name}`)
  types.set(name, text)
  for (const reference of referencesIn(schema)) addSchema(types, document, reference)
}

function referencesIn(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return []
  const { $ref } = value as Schema
  return $ref === undefined ? Object.values(value).flatMap(referencesIn) : [nameOf($ref)]
}

function nameOf(reference: string): string {
  return reference.slice(reference.lastIndexOf('/') + 1)
}

/** A JSON schema as the text of a TypeScript type. Limits such as `maximum` and `pattern` have no equivalent. */
export function typeOf(schema: Schema): string {
  if (schema.$ref !== undefined) return nameOf(schema.$ref)
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ')
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(' | ')
  if (Array.isArray(schema.type)) return schema.type.map((type) => typeOf({ ...schema, type })).join(' | ')
  if (schema.type === 'array') return `(${typeOf(schema.items ?? {})})[]`
  if (schema.type === 'object') return objectType(schema)
  if (schema.type === 'integer') return 'number'
  return schema.type ?? 'unknown'
}

function objectType({ properties, required = [], additionalProperties = {} }: Schema): string {
  if (!properties) {
    return `Record<string, ${typeof additionalProperties === 'boolean' ? 'unknown' : typeOf(additionalProperties)}>`
  }
  const lines = Object.entries(properties).map(([name, schema]) => {
    return `${JSON.stringify(name)}${required.includes(name) ? '' : '?'}: ${typeOf(schema)}`
  })
  return `{\n${lines.join('\n')}\n}`
}

function format(source: string): string {
  const root = fileURLToPath(new URL('..', import.meta.url))
  const biome = ['node_modules/@biomejs/biome/bin/biome', 'format', '--stdin-file-path=src/cli/api-types.ts']
  return execFileSync(process.execPath, biome, { cwd: root, input: source, encoding: 'utf8' })
}
