// How the edge logs in to the state database.
import { randomBytes } from 'node:crypto'
import type pg from 'pg'
import { isRoot } from '../../drivers/host/process.ts'
import { scramVerifier } from '../../drivers/postgres/sql/scram.ts'
import { edgeRole } from '../../drivers/state/access.ts'
import type { EdgeSettings } from '../../edge/settings.ts'
import { ensureEdgeRole } from '../../store/edge-role.ts'
import type { ControlPlane } from '../control-plane.ts'

/**
 * Prepares the role of the edge and returns its login. Only root can read the file with the settings that contains its
 * password. `kept` are the settings of a running edge that stay as they are.
 */
export async function ensureEdgeLogin(
  { config, db, databaseConfig }: Pick<ControlPlane, 'config' | 'db' | 'databaseConfig'>,
  kept: Pick<EdgeSettings, 'database'> | undefined,
): Promise<pg.ClientConfig> {
  if (config.edgeDatabaseUrl !== undefined) {
    await ensureEdgeRole(db, { name: decodeURIComponent(new URL(config.edgeDatabaseUrl).username) })
    return { connectionString: config.edgeDatabaseUrl }
  }
  if (config.databaseUrl !== undefined) return databaseConfig
  if (!isRoot()) {
    await ensureEdgeRole(db, { name: edgeRole, verifier: null })
    return { ...databaseConfig, user: edgeRole }
  }
  const password = findPassword(kept) ?? randomBytes(24).toString('base64url')
  await ensureEdgeRole(db, { name: edgeRole, verifier: scramVerifier(password) })
  return { ...databaseConfig, user: edgeRole, password }
}

/** Undefined also for settings of a version in which the edge used the role of the control plane. */
function findPassword(settings: Pick<EdgeSettings, 'database'> | undefined): string | undefined {
  const { user, password } = settings?.database ?? {}
  return user === edgeRole && typeof password === 'string' ? password : undefined
}
