import { BerthError, badRequest, conflict, invalid, notFound, unavailable } from '../../../model/errors.ts'

type ErrorFactory = (message: string) => BerthError

/** SQLSTATE codes that a request of a caller can cause. Any other code is a fault of the platform. */
const callerErrors: Record<string, ErrorFactory> = {
  '0A000': invalid, // feature_not_supported, such as an extension that cannot be moved
  '22023': invalid, // invalid_parameter_value
  '22P02': invalid, // invalid_text_representation: an extension cannot be in a schema whose name has a quote
  '23505': () => conflict('Another request is creating the same object'), // unique_violation in a catalog
  '2BP01': conflict, // dependent_objects_still_exist
  '3D000': notFound, // invalid_catalog_name: there is no such database
  '3F000': invalid, // invalid_schema_name
  '42501': invalid, // insufficient_privilege, for statements that run with the rights of a tenant
  '42602': invalid, // invalid_name
  '42622': invalid, // name_too_long
  '42704': notFound, // undefined_object: there is no such role or extension
  '42710': conflict, // duplicate_object
  '42723': conflict, // duplicate_function
  '42809': conflict, // wrong_object_type: a template database cannot be dropped
  '42939': invalid, // reserved_name
  '42P04': conflict, // duplicate_database
  '42P06': conflict, // duplicate_schema
  '42P07': conflict, // duplicate_table
  '55000': invalid, // object_not_in_prerequisite_state: the database does not allow connections
  '55006': conflict, // object_in_use
  '55P03': () => unavailable('Another session holds a lock on the object; retry when it is done'), // lock_not_available
  '58P01': invalid, // undefined_file: the library of an extension is not installed
}

// SQLSTATE classes and errno codes of a server that is overloaded, restarting or not running.
const temporary = /^(08|40|53|57|ECONN|ENOENT|EPIPE|ETIMEDOUT)/

export function explainError(error: unknown, operation: string): Error {
  if (error instanceof BerthError) return error
  const { code = '', message = String(error) } = error as { code?: string; message?: string }
  const callerError = callerErrors[code]
  if (callerError) return callerError(capitalized(withoutDirectories(message)))
  // Timeouts of the client library have no code.
  const isTemporary = temporary.test(code) || /timeout|Connection terminated/.test(message)
  const wrapped = new Error(operation, { cause: error })
  return isTemporary ? unavailable('The cluster does not answer at the moment', wrapped) : wrapped
}

function capitalized(message: string): string {
  return message.charAt(0).toUpperCase() + message.slice(1)
}

/** Hides the directories of the host from callers. */
function withoutDirectories(message: string): string {
  return message.replaceAll(/"\/[^"]*\/([^"/]+)"/g, '"$1"')
}

export const reservedName = (name: string) => badRequest(`${name} is reserved`)
