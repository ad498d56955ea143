import type { BoxDriver, FoundSession } from '../../drivers/box/driver.ts'
import { getOrgLimit } from '../../store/account/quota.ts'
import type { Db } from '../../store/db.ts'
import { loadSandbox } from '../../store/sandbox/sandbox.ts'
import type { OpenConnections } from '../connection.ts'
import type { ExecSessions } from './exec-sessions.ts'

export interface ExecRestore {
  db: Db
  boxes: Pick<BoxDriver, 'findSessions'>
  sessions: ExecSessions
  connections: OpenConnections
}

/** Continues the sessions that an earlier control plane started. To be called before requests are served. */
export async function restoreSessions(restore: ExecRestore): Promise<void> {
  const restoring: Promise<void>[] = []
  await restore.boxes.findSessions((found) => restoring.push(restoreSession(restore, found)))
  await Promise.all(restoring)
}

/** A session of a sandbox that is gone ends with its box. */
async function restoreSession({ db, sessions, connections }: ExecRestore, found: FoundSession): Promise<void> {
  const sandbox = await loadSandbox(db, found.boxId)
  if (!sandbox) return found.leave()
  const limit = await getOrgLimit(db, sandbox.orgId, 'commands')
  // It counts, and is not refused when others have been started or the quota was lowered meanwhile.
  const release = connections.hold('commands', { ...limit, limit: null })
  if (sessions.continue(found, release)) return
  release()
  found.leave()
}
