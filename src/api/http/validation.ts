import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv'
import type { FastifySchemaCompiler } from 'fastify'
import type { Static, TSchema } from 'typebox'
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
  return ({ schema, httpPart }) => compileLazily(httpPart === 'body' ? strict : coercing, schema)
}

/** Most operations are never called in the life of a process, and compiled schemas take a lot of memory. */
function compileLazily(ajv: Ajv, schema: object): ValidateFunction {
  let compiled: ValidateFunction | undefined
  const check = ((value: unknown) => {
    compiled ??= ajv.compile(schema)
    const isValid = compiled(value)
    const infinite = isValid ? findInfinite(value) : undefined
    check.errors = infinite ? [infinite] : (compiled.errors ?? null)
    return isValid && infinite === undefined
  }) as ValidateFunction
  return check
}

/** Coercion turns "1e999" into an infinite number, which passes as an integer. In a body it does not pass. */
function findInfinite(value: unknown): ErrorObject | undefined {
  const found = Object.entries(value ?? {}).find(([, field]) => field === Infinity || field === -Infinity)
  if (!found) return undefined
  return { keyword: 'type', instancePath: `/${found[0]}`, schemaPath: '', params: { type: 'integer' } }
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
