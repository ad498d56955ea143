import type { OpenApiDocument } from '../http/openapi.ts'
import { slug } from './html.ts'

export type Json = Record<string, unknown>

export interface Operation {
  /** Its anchor in the page. */
  id: string
  operationId: string
  tag: string
  method: string
  path: string
  summary: string
  description: string
  parameters: Parameter[]
  body: Content | undefined
  responses: Response[]
  needsToken: boolean
}

/** A tag and its operations. */
export interface Group {
  name: string
  description: string
  operations: Operation[]
}

export interface Parameter {
  name: string
  place: string
  required: boolean
  description: string
  shape: Shape
}

export interface Content {
  mediaType: string
  shape: Shape
}

export interface Response {
  status: string
  description: string
  content: Content | undefined
}

/** A schema with its references resolved, so that rendering does not need the document. */
export interface Shape {
  type: string
  nullable: boolean
  description: string
  fields: Field[]
  items?: Shape
  options: Shape[]
  /** Alternative sets of required fields, of which one must be present. */
  needs: string[][]
  /** The name of an enclosing schema that recurs here and is not expanded again. */
  recursive?: string
  /** The schema itself, for its constraints. */
  schema: Json
}

export interface Field {
  name: string
  required: boolean
  shape: Shape
}

const methods = ['get', 'post', 'put', 'patch', 'delete']

export function operationsOf(document: OpenApiDocument): Operation[] {
  return Object.entries(document.paths).flatMap(([path, item]) =>
    Object.entries(item)
      .filter(([method]) => methods.includes(method))
      .map(([method, record]) => operationOf(document, path, method, record)),
  )
}

function operationOf(document: OpenApiDocument, path: string, method: string, record: Json): Operation {
  const body = record.requestBody as Json | undefined
  const security = (record.security ?? document.security) as Json[]
  return {
    id: slug(text(record.operationId) || `${method}-${path}`),
    operationId: text(record.operationId),
    tag: (record.tags as string[] | undefined)?.[0] ?? 'Other',
    method,
    path,
    summary: text(record.summary) || `${method.toUpperCase()} ${path}`,
    description: text(record.description),
    parameters: ((record.parameters ?? []) as Json[]).map((parameter) =>
      parameterOf(document, resolve(document, parameter)),
    ),
    body: body && contentOf(document, body),
    responses: Object.entries(record.responses as Record<string, Json>).map(([status, response]) =>
      responseOf(document, status, resolve(document, response)),
    ),
    needsToken: security.length > 0,
  }
}

/** Follows a reference to a shared parameter or response. */
function resolve({ components }: OpenApiDocument, part: Json): Json {
  if (typeof part.$ref !== 'string') return part
  const [section, name] = part.$ref.split('/').slice(-2)
  const shared = components[section as 'parameters' | 'responses'][name!]
  if (!shared) throw new Error(`the OpenAPI document has no ${part.$ref}`)
  return shared as Json
}

function responseOf(document: OpenApiDocument, status: string, response: Json): Response {
  return { status, description: text(response.description), content: contentOf(document, response) }
}

function parameterOf(document: OpenApiDocument, parameter: Json): Parameter {
  return {
    name: text(parameter.name),
    place: text(parameter.in),
    required: parameter.required === true,
    description: text(parameter.description),
    shape: shapeOf(document, (parameter.schema ?? {}) as Json),
  }
}

function contentOf(document: OpenApiDocument, holder: Json): Content | undefined {
  const first = Object.entries((holder.content ?? {}) as Record<string, Json>)[0]
  if (!first) return undefined
  return { mediaType: first[0], shape: shapeOf(document, (first[1].schema ?? {}) as Json) }
}

export function groupByTag(document: OpenApiDocument, operations: Operation[]): Group[] {
  const names = new Set([...document.tags.map(({ name }) => name), ...operations.map(({ tag }) => tag)])
  const groups = [...names].map((name) => ({
    name,
    description: text(document.tags.find((tag) => tag.name === name)?.description),
    operations: operations.filter(({ tag }) => tag === name),
  }))
  return groups.filter((group) => group.operations.length > 0)
}

/** `above` holds the references being followed, which stops the recursion into a schema that contains itself. */
function shapeOf(document: OpenApiDocument, schema: Json, above: readonly string[] = []): Shape {
  if (typeof schema.$ref === 'string') return referredShape(document, schema, schema.$ref, above)
  const needs = needsOf(schema)
  const alternatives = needs.length > 0 ? [] : alternativesOf(schema)
  const variants = alternatives.map((variant) => shapeOf(document, variant, above))
  const options = variants.filter(({ type }) => type !== 'null')
  const nullable = options.length < variants.length || (Array.isArray(schema.type) && schema.type.includes('null'))
  const only = options.length === 1 ? options[0] : undefined
  if (only)
    return { ...only, nullable: nullable || only.nullable, description: text(schema.description) || only.description }
  if (options.length > 1 && options.every(isConstant)) return enumShape(schema, options, nullable)
  const parts = ((schema.allOf ?? []) as Json[]).map((part) => shapeOf(document, part, above))
  const items = (schema.items ?? mapValues(schema)) as Json | undefined
  return {
    type: typeOf(schema, parts.length > 0),
    nullable,
    description: text(schema.description),
    fields: [...fieldsOf(document, schema, above), ...parts.flatMap(({ fields }) => fields)],
    ...(items ? { items: shapeOf(document, items, above) } : {}),
    options,
    needs,
    schema,
  }
}

function referredShape(document: OpenApiDocument, schema: Json, ref: string, above: readonly string[]): Shape {
  const name = ref.split('/').at(-1)!
  const target = document.components.schemas[name] as Json | undefined
  const { $ref: _ref, ...beside } = schema
  if (target && !above.includes(ref)) return shapeOf(document, { ...target, ...beside }, [...above, ref])
  const description = text(beside.description)
  return {
    type: 'object',
    nullable: false,
    description,
    fields: [],
    options: [],
    needs: [],
    recursive: name,
    schema: {},
  }
}

function alternativesOf(schema: Json): Json[] {
  return (schema.anyOf ?? schema.oneOf ?? []) as Json[]
}

/** Alternatives that consist of `required` alone are not schemas; they say which fields must be present. */
function needsOf(schema: Json): string[][] {
  const alternatives = alternativesOf(schema)
  const onlyRequire = alternatives.every((alternative) => Object.keys(alternative).join() === 'required')
  return onlyRequire ? alternatives.map(({ required }) => required as string[]) : []
}

function fieldsOf(document: OpenApiDocument, schema: Json, above: readonly string[]): Field[] {
  const required = (schema.required ?? []) as string[]
  return Object.entries((schema.properties ?? {}) as Record<string, Json>).map(([name, property]) => ({
    name,
    required: required.includes(name),
    shape: shapeOf(document, property, above),
  }))
}

/** The schema of the values of an object with arbitrary keys. */
function mapValues(schema: Json): unknown {
  if (schema.properties) return undefined
  const byPattern = Object.values((schema.patternProperties ?? {}) as Json)[0]
  return typeof schema.additionalProperties === 'object' ? schema.additionalProperties : byPattern
}

function typeOf(schema: Json, merged: boolean): string {
  if (mapValues(schema)) return 'map'
  const named = Array.isArray(schema.type) ? schema.type.filter((type) => type !== 'null').join(' or ') : schema.type
  if (typeof named === 'string') return named
  if (merged || schema.properties) return 'object'
  const value = schema.const ?? (schema.enum as unknown[] | undefined)?.[0]
  return value === undefined ? 'any' : typeof value
}

function isConstant({ schema }: Shape): boolean {
  return schema.const !== undefined
}

function enumShape(schema: Json, options: Shape[], nullable: boolean): Shape {
  const values = options.map((option) => option.schema.const)
  const bounds = { enum: values, ...(schema.default === undefined ? {} : { default: schema.default }) }
  const description = text(schema.description)
  return { type: typeof values[0], nullable, description, fields: [], options: [], needs: [], schema: bounds }
}

export function text(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
