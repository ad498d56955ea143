// PgBouncer keeps a client whose user is gone: what the client asks next waits two minutes for a session of the server
// that nobody gets. Nor does a new password end what began with the old one. PgBouncer 1.18 has no command for a single
// client, but it tells whose each is; so the connection is ended, as if the client had closed it.

import { run } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import type { ClusterPaths } from '../paths.ts'
import { askConsole, type PoolerAddress } from './console.ts'

/** All sessions of a user, or all in a database. */
export type PooledSessions = { user: string } | { database: string }

interface PooledClient extends Record<string, unknown> {
  user: string
  database: string
  addr: string
  port: number
}

export async function endPooledSessions(
  paths: ClusterPaths,
  pid: number,
  address: PoolerAddress,
  which: PooledSessions,
): Promise<void> {
  const clients = await askConsole<PooledClient>(paths, address, 'show clients')
  const ending = clients.filter((client) =>
    'user' in which ? client.user === which.user : client.database === which.database,
  )
  if (ending.length === 0) return
  const sides = ending.map(({ addr, port }) => `${addr} ${port}\n`)
  await run('perl', [driverProgram('postgres/pooler/session.pl'), process.arch, String(pid)], { input: sides.join('') })
}
