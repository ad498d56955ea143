import { chmodSync, renameSync, writeFileSync } from 'node:fs'
import { type Machine, seccompFilter } from '../box/seccomp.ts'
import { temporaryPath } from '../host/atomic-file.ts'
import { readIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'

/** Writes the seccomp filter to a file and returns its path. Services need it also after a reboot. */
export function ensureConfineFilter(home: Home): string {
  const file = `${home.toolchain}/seccomp-filter`
  const bytes = seccompFilter(process.arch as Machine, { keepsProjects: true })
  if (readIfPresent(file)?.equals(bytes)) return file
  const fresh = temporaryPath(home.toolchain)
  writeFileSync(fresh, bytes, { flag: 'wx' })
  chmodSync(fresh, 0o644)
  renameSync(fresh, file)
  return file
}
