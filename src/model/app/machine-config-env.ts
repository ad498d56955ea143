import { badRequest } from '../errors.ts'

const maxEnvironmentBytes = 1024 * 1024
const maxMetadataEntries = 100
const maxMetadataKeyLength = 256
const maxMetadataValueLength = 4096

export function checkEnvironment(field: string, env: Record<string, string> | undefined): void {
  let bytes = 0
  for (const [name, value] of Object.entries(env ?? {})) {
    if (name === '' || /[=\0]/.test(name))
      throw badRequest(`${field} has an invalid variable name: ${JSON.stringify(name)}`)
    if (value.includes('\0')) throw badRequest(`${field}.${name} must not contain NUL characters`)
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value)
  }
  if (bytes > maxEnvironmentBytes) throw badRequest(`${field} is larger than ${maxEnvironmentBytes} bytes`)
}

export function checkMetadata(field: string, metadata: Record<string, string> | undefined): void {
  const entries = Object.entries(metadata ?? {})
  if (entries.length > maxMetadataEntries) throw badRequest(`${field} has more than ${maxMetadataEntries} entries`)
  for (const [key, value] of entries) {
    if (key === '' || key.length > maxMetadataKeyLength || key.includes('\0'))
      throw badRequest(`${field} has a key that is empty or longer than ${maxMetadataKeyLength} characters`)
    if (value.length > maxMetadataValueLength || value.includes('\0'))
      throw badRequest(`${field}.${key} is longer than ${maxMetadataValueLength} characters`)
  }
}
