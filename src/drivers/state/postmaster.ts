// The lock file of the state database, postmaster.pid: the pid in line 1 and the status in line 8.
import { readTextIfPresent } from '../host/file.ts'
import { scriptCommand } from '../postgres/script.ts'

/**
 * The pid of the server, once its status is `ready`. A killed server leaves the file behind, so callers must compare the
 * pid with that of the supervised process.
 */
export function findReadyPid(data: string): number | undefined {
  const lines = readTextIfPresent(`${data}/postmaster.pid`)?.split('\n') ?? []
  return lines[7]?.trim() === 'ready' ? Number(lines[0]) : undefined
}

/** A command to run before each start of the server. */
export function clearStaleLocks(data: string, socketDirectory: string, port: number): string[] {
  return scriptCommand('state/clear-stale-locks.sh', data, `${socketDirectory}/.s.PGSQL.${port}.lock`)
}
