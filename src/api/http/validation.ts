import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv'
import type { FastifySchemaCompiler } from 'fastify'
import type { Static, TSchema } from 'typebox'
import { BerthError } from '../../model/errors.ts'

// `refusal` in a schema is the sentence a caller reads when the value does not fit it.
const options: Options = {
  verbose: true,
  allErrors: false,
  strict: true,
  // A branch of `anyOf` need not repeat the type and the properties.
  strictTypes: false,
  strictRequired: false,
  keywords: ['refusal'],
  formats: { 'date-time': true },
}

/** Bodies are taken as they are: a number in quotes is not a number. Queries and paths have nothing but text. */
export function schemaCompiler(): FastifySchemaCompiler<object> {
  const exact = new Ajv({ ...options, coerceTypes: false })
  const fromText = new Ajv({ ...options, coerceTypes: true })
  return ({ schema, httpPart }) => compiledWhenUsed(httpPart === 'body' ? exact : fromText, schema)
}

/** Most operations are never called in the life of a process, and compiled schemas take much of its memory. */
function compiledWhenUsed(ajv: Ajv, schema: object): ValidateFunction {
  let compiled: ValidateFunction | undefined
  const check = ((value: unknown) => {
    compiled ??= ajv.compile(schema)
    const fits = compiled(value)
    check.errors = compiled.errors ?? null
    return fits
  }) as ValidateFunction
  return check
}

let others: Ajv | undefined

/** The value, refused as a body of this schema would be, where it came another way than as the body of a route. */
export function checkBody<S extends TSchema>(schema: S, value: Static<S>): Static<S> {
  others ??= new Ajv({ ...options, coerceTypes: false })
  const check = others.compile(schema) // compiled once for each schema
  if (!check(value)) throw refusalOf(check.errors ?? [], 400)
  return value
}

export function refusalOf(errors: ErrorObject[], status: 400 | 422): BerthError {
  const code = status === 422 ? 'invalid' : 'bad_request'
  return new BerthError(code, errors[0] ? sentenceOf(errors[0]) : 'the request is not valid')
}

function sentenceOf(error: ErrorObject): string {
  const schema = error.parentSchema as { refusal?: string; enum?: unknown[]; type?: string } | undefined
  // Of most fields it is about their values; a boolean has no wrong ones.
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
