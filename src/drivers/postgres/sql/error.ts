import { BerthError, badRequest, conflict, invalid, notFound, unavailable } from '../../../model/errors.ts'

type Refusal = (message: string) => BerthError

/** What PostgreSQL's codes mean to somebody who asked for something. Any other is a fault of ours. */
const refusals: Record<string, Refusal> = {
  '0A000': invalid, // feature_not_supported, such as an extension that cannot be moved
  '22023': invalid, // invalid_parameter_value
  '22P02': invalid, // invalid_text_representation: an extension cannot be in a schema whose name has a quote
  '23505': () => conflict('Another request makes the same at this moment'), // unique_violation, of a catalog
  '2BP01': conflict, // dependent_objects_still_exist
  '3D000': notFound, // invalid_catalog_name: there is no such database
  '3F000': invalid, // invalid_schema_name
  '42501': invalid, // insufficient_privilege, where we act in the name of tenants
  '42602': invalid, // invalid_name
  '42622': invalid, // name_too_long
  '42704': notFound, // undefined_object: there is no such role or extension
  '42710': conflict, // duplicate_object
  '42723': conflict, // duplicate_function
  '42809': conflict, // wrong_object_type: a template is not dropped
  '42939': invalid, // reserved_name
  '42P04': conflict, // duplicate_database
  '42P06': conflict, // duplicate_schema
  '42P07': conflict, // duplicate_table
  '55000': invalid, // object_not_in_prerequisite_state: its owner closed the database to everybody
  '55006': conflict, // object_in_use
  '55P03': () => unavailable('Another session has locked what this changes; it works once that one is done'), // lock_not_available
  '58P01': invalid, // undefined_file: the library of an extension is not installed
}

// Classes of codes, and what the system says when nobody listens: it will answer again.
const passing = /^(08|40|53|57|ECONN|ENOENT|EPIPE|ETIMEDOUT)/

export function explainError(error: unknown, doing: string): Error {
  if (error instanceof BerthError) return error
  const { code = '', message = String(error) } = error as { code?: string; message?: string }
  const refuse = refusals[code]
  if (refuse) return refuse(capitalized(withoutDirectories(message)))
  // Without a code: the timeouts of the client itself.
  const isPassing = passing.test(code) || /timeout|Connection terminated/.test(message)
  if (isPassing) return unavailable('The cluster does not answer at the moment', new Error(doing, { cause: error }))
  return new Error(doing, { cause: error })
}

function capitalized(message: string): string {
  return message.charAt(0).toUpperCase() + message.slice(1)
}

/** Where the platform lies is nobody's business. */
function withoutDirectories(message: string): string {
  return message.replaceAll(/"\/[^"]*\/([^"/]+)"/g, '"$1"')
}

export const reservedName = (name: string) => badRequest(`${name} is reserved`)
