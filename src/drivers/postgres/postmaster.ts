// The lock file of a server, postmaster.pid: the pid in line 1, the port in line 4 and the status in line 8.
import { readTextIfPresent } from '../host/file.ts'
import { scriptCommand } from './script.ts'

function readLockFile(data: string): string[] {
  return readTextIfPresent(`${data}/postmaster.pid`)?.split('\n') ?? []
}

/**
 * The pid of the server, once its status is `ready`. A killed server leaves the file behind, so callers must compare the
 * pid with that of the supervised process.
 */
export function findReadyPid(data: string): number | undefined {
  const lines = readLockFile(data)
  return lines[7]?.trim() === 'ready' ? Number(lines[0]) : undefined
}

export function findPort(data: string): number | undefined {
  const port = readLockFile(data)[3]
  return port ? Number(port) : undefined
}

/** A command to run before each start of a server. */
export function clearStaleLocks(data: string, socketDirectory: string, port: number): string[] {
  return scriptCommand('postgres/clear-stale-locks.sh', data, `${socketDirectory}/.s.PGSQL.${port}.lock`)
}
