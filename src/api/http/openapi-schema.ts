// Schemas as they stand in the OpenAPI documents: written the way that generators of clients understand.
import type { TSchema } from 'typebox'

type Json = Record<string, unknown>

/** Converts a schema to plain JSON and replaces titled schemas by references to components. */
export function refer(schema: TSchema, schemas: Json): Json {
  const plain = JSON.parse(JSON.stringify(schema)) as Json
  return hoist(plain, schemas) as Json
}

function hoist(value: unknown, schemas: Json): unknown {
  if (Array.isArray(value)) return value.map((item) => hoist(item, schemas))
  if (typeof value !== 'object' || value === null) return value
  const { title, refusal: _refusal, ...rest } = value as Json
  const inner = Object.fromEntries(Object.entries(rest).map(([key, item]) => [key, hoist(item, schemas)]))
  const simple = withType(withNull(withValues(withoutNeeds(inner))))
  if (typeof title !== 'string') return simple
  schemas[title] = simple
  return { $ref: `#/components/schemas/${title}` }
}

/** Whether a schema only says which fields must be present. Generators would make a type without fields of it. */
export function isNeed(schema: unknown): boolean {
  return Object.keys(schema as Json).join() === 'required'
}

function withoutNeeds(schema: Json): Json {
  const { anyOf, ...rest } = schema
  return Array.isArray(anyOf) && anyOf.every(isNeed) ? rest : schema
}

/** Maps are commonly written with `additionalProperties`; a pattern for every key means the same. */
function withValues(schema: Json): Json {
  const { patternProperties, ...rest } = schema
  const patterns = Object.entries((patternProperties ?? {}) as Json)
  if (patterns.length !== 1 || patterns[0]![0] !== '^.*$') return schema
  return { ...rest, additionalProperties: patterns[0]![1] }
}

/** Writes "a value or null" as two types, which is the form of OpenAPI 3.1. */
function withNull(schema: Json): Json {
  const { anyOf, ...rest } = schema
  if (!Array.isArray(anyOf) || anyOf.length !== 2 || anyOf[1].type !== 'null') return schema
  const [value] = anyOf as [Json]
  if (typeof value.type !== 'string' || value.type === 'object' || 'enum' in value) return schema
  return { ...value, ...rest, type: [value.type, 'null'] }
}

function withType(schema: Json): Json {
  const { enum: values, type } = schema
  if (!Array.isArray(values) || type !== undefined) return schema
  return values.every((value) => typeof value === 'string') ? { type: 'string', ...schema } : schema
}
