// The lock file of a server, postmaster.pid, whose line 8 is its status.
import { readTextIfPresent } from '../host/file.ts'
import { readUntrustedFile } from '../host/untrusted-file.ts'
import type { ClusterPaths } from './paths.ts'

const maxBytes = 4096

function isReady(data: string): boolean {
  const lines = readUntrustedFile(data, 'postmaster.pid', maxBytes)?.toString().split('\n') ?? []
  return lines[7]?.trim() === 'ready'
}

/**
 * The pid of the service whose server is ready. The service removes the lock file of an earlier server before it records its
 * own pid, and the pid in the lock file means nothing outside of the namespace of the server.
 */
export function findReadyService(paths: ClusterPaths): number | undefined {
  // Read first: the lock file is then of this service or a later one.
  const pid = readTextIfPresent(paths.pid)
  return pid !== undefined && isReady(paths.data) ? Number(pid) : undefined
}
