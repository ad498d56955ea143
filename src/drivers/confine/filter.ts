import { type Machine, seccompFilter } from '../box/seccomp.ts'
import { ensureFile } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'

/** Writes the seccomp filter to a file and returns its path. Services need it also after a reboot. */
export function ensureConfineFilter(home: Home): string {
  const file = `${home.toolchain}/seccomp-filter`
  ensureFile(file, seccompFilter(process.arch as Machine, { keepsProjects: true }), { mode: 0o644 })
  return file
}
