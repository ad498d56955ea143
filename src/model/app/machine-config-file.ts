import { badRequest } from '../errors.ts'
import type { MachineFile } from './container/program.ts'
import type { MachineMount } from './machine-config.ts'

export function checkFile(field: string, file: MachineFile): void {
  checkPath(`${field}.guest_path`, file.guest_path)
  if ((file.raw_value === undefined) === (file.secret_name === undefined)) {
    throw badRequest(`${field} must have raw_value or secret_name`)
  }
  if (file.raw_value !== undefined && !isBase64(file.raw_value)) throw badRequest(`${field}.raw_value must be base64`)
}

export function checkMount(field: string, mount: MachineMount): void {
  checkPath(`${field}.path`, mount.path)
  if (!mount.volume && !mount.name) throw badRequest(`${field}.volume is required`)
  if (mount.extend_threshold_percent) {
    if (!mount.add_size_gb) throw badRequest(`${field}.add_size_gb is required with extend_threshold_percent`)
  } else if (mount.add_size_gb || mount.size_gb_limit)
    throw badRequest(`${field}.extend_threshold_percent is required with add_size_gb and size_gb_limit`)
}

/** Padding is optional. */
export function isBase64(text: string): boolean {
  return /^[A-Za-z0-9+/]*={0,2}$/.test(text) && text.replace(/=+$/, '').length % 4 !== 1
}

function checkPath(field: string, path: string): void {
  const parts = path.split('/')
  const isRoot = parts.every((part) => part === '' || part === '.')
  if (!path.startsWith('/') || path.includes('\0') || parts.includes('..') || isRoot) {
    throw badRequest(`${field} must be an absolute path below the root, without ..`)
  }
}
