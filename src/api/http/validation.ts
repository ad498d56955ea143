import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv'
import type { FastifySchemaCompiler } from 'fastify'
import type { Static, TObject, TSchema } from 'typebox'
import { BerthError } from '../../model/errors.ts'

// The keyword `refusal` in a schema holds the error message for values that do not match it.
const options: Options = {
  verbose: true,
  allErrors: false,
  strict: true,
  // Branches of `anyOf` may omit the type and the properties.
  strictTypes: false,
  strictRequired: false,
  keywords: ['refusal'],
  formats: { 'date-time': true },
}

/** Types are coerced in queries and paths, which consist of text. Bodies are taken literally: "1" is not a number. */
export function schemaCompiler(): FastifySchemaCompiler<object> {
  const strict = new Ajv({ ...options, coerceTypes: false })
  const coercing = new Ajv({ ...options, coerceTypes: true })
  return ({ schema, httpPart }) =>
    httpPart === 'body' ? compileLazily(strict, schema) : compileLazily(coercing, schema, findBadNumber)
}

/** Most operations are never called in the life of a process, and compiled schemas take a lot of memory. */
function compileLazily(ajv: Ajv, schema: object, findFirst?: typeof findBadNumber): ValidateFunction {
  let compiled: ValidateFunction | undefined
  const check = ((value: unknown) => {
    compiled ??= ajv.compile(schema)
    const first = findFirst?.(schema, value)
    const isValid = first === undefined && compiled(value)
    check.errors = first ? [first] : (compiled.errors ?? null)
    return isValid
  }) as ValidateFunction
  return check
}

/** Numbers as they are written in decimal. Coercion would also take "1e2", "0x10", "+5", " 5" and "1e999". */
const numberForms: Record<string, RegExp> = { integer: /^-?\d{1,15}$/, number: /^-?\d{1,15}(?:\.\d{1,15})?$/ }

/** Finds text in the place of a number that is not written as one. */
function findBadNumber(schema: object, value: unknown): ErrorObject | undefined {
  for (const [name, parentSchema] of Object.entries((schema as TObject).properties ?? {})) {
    const { type } = parentSchema as { type?: string }
    const text = (value as Record<string, unknown> | undefined)?.[name]
    if (type === undefined || typeof text !== 'string' || numberForms[type]?.test(text) !== false) continue
    return { keyword: 'type', instancePath: `/${name}`, schemaPath: '', params: { type }, parentSchema }
  }
  return undefined
}

let bodyAjv: Ajv | undefined

/** Validates a value that is not the body of a route in the way a body is validated. */
export function checkBody<S extends TSchema>(schema: S, value: Static<S>): Static<S> {
  bodyAjv ??= new Ajv({ ...options, coerceTypes: false })
  const check = bodyAjv.compile(schema) // cached by Ajv
  if (!check(value)) throw refusalOf(check.errors ?? [], 400)
  return value
}

export function refusalOf(errors: ErrorObject[], status: 400 | 422): BerthError {
  const code = status === 422 ? 'invalid' : 'bad_request'
  return new BerthError(code, errors[0] ? messageOf(errors[0]) : 'the request is not valid')
}

function messageOf(error: ErrorObject): string {
  const schema = error.parentSchema as { refusal?: string; enum?: unknown[]; type?: string } | undefined
  // The message is about wrong values, so a wrong type is reported as such, except for booleans, which have no wrong values.
  if (schema?.refusal && (error.keyword !== 'type' || schema.type === 'boolean')) return schema.refusal
  const field = error.instancePath.slice(1).replaceAll('/', '.')
  if (error.keyword === 'required') return `${joined(field, error.params.missingProperty)} is required`
  if (error.keyword === 'additionalProperties')
    return `${joined(field, error.params.additionalProperty)} is not a known field`
  if (field === '') return 'the body must be a JSON object'
  if (error.keyword === 'type') return `${field} must be ${article(error.params.type)}`
  if (error.keyword === 'enum') return `${field} must be one of ${schema?.enum?.join(', ')}`
  return `${field} ${error.message}`
}

function joined(parent: string, field: string): string {
  return parent === '' ? field : `${parent}.${field}`
}

function article(type: string | string[]): string {
  const name = Array.isArray(type) ? type.join(' or ') : type
  return /^[aio]/.test(name) ? `an ${name}` : `a ${name}`
}
