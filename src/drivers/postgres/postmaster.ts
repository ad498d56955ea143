// The lock file of a server, postmaster.pid: the pid in line 1 and the status in line 8.
import { readTextIfPresent } from '../host/file.ts'
import { readUntrustedFile } from '../host/untrusted-file.ts'
import type { ClusterPaths } from './paths.ts'
import { scriptCommand } from './script.ts'

const maxBytes = 4096

function readLockFile(data: string): string[] {
  return readUntrustedFile(data, 'postmaster.pid', maxBytes)?.toString().split('\n') ?? []
}

function isReady(lines: string[]): boolean {
  return lines[7]?.trim() === 'ready'
}

/**
 * The pid of the service whose server is ready. The service removes the lock file of an earlier server before it records its
 * own pid, and the pid in the lock file means nothing outside of the namespace of the server.
 */
export function findReadyService(paths: ClusterPaths): number | undefined {
  // Read first: the lock file is then of this service or a later one.
  const pid = readTextIfPresent(paths.pid)
  return pid !== undefined && isReady(readLockFile(paths.data)) ? Number(pid) : undefined
}

/**
 * The pid of the server, once its status is `ready`. A killed server leaves the file behind, so callers must compare the
 * pid with that of the supervised process.
 */
export function findReadyPid(data: string): number | undefined {
  const lines = readLockFile(data)
  return isReady(lines) ? Number(lines[0]) : undefined
}

/** A command to run before each start of a server. */
export function clearStaleLocks(data: string, socketDirectory: string, port: number): string[] {
  return scriptCommand('postgres/clear-stale-locks.sh', data, `${socketDirectory}/.s.PGSQL.${port}.lock`)
}
