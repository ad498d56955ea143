// PgBouncer keeps the connection of a client whose user was dropped: its next query waits two minutes for a server
// connection that cannot be opened. Sessions also survive a new password. PgBouncer 1.18 has no command to disconnect a
// single client, but it lists the address of each, so the TCP connection is shut down as if the client had closed it.

import { run } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import type { ClusterPaths } from '../paths.ts'
import { queryConsole } from './console.ts'
import type { PooledSessions, PoolerAddress } from './driver.ts'

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
  sessions: PooledSessions,
): Promise<void> {
  const clients = await queryConsole<PooledClient>(paths, address, 'show clients')
  const ending = clients.filter((client) =>
    'user' in sessions ? client.user === sessions.user : client.database === sessions.database,
  )
  if (ending.length === 0) return
  const peers = ending.map(({ addr, port }) => `${addr} ${port}\n`)
  await run('perl', [driverProgram('postgres/pooler/session.pl'), process.arch, String(pid)], { input: peers.join('') })
}
