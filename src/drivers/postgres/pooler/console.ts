// The admin console of PgBouncer, which is reached as a database named `pgbouncer`.
import { readFileSync } from 'node:fs'
import { unavailable } from '../../../model/errors.ts'
import { reachableHost } from '../../network/port.ts'
import type { ClusterPaths } from '../paths.ts'
import { queryOnce } from '../sql/connection.ts'
import type { Row } from '../sql/driver.ts'
import { poolerUser } from '../sql/platform-role.ts'
import type { PoolerAddress } from './driver.ts'

export function userFile(paths: ClusterPaths): string {
  return `${paths.pooler}/userlist.txt`
}

export async function queryConsole<R extends Row>(
  paths: ClusterPaths,
  { listen, port }: PoolerAddress,
  command: string,
): Promise<R[]> {
  const password = /" "(\w+)"/.exec(readFileSync(userFile(paths), 'utf8'))![1]!
  const target = { host: reachableHost(listen), port, user: poolerUser, password, database: 'pgbouncer' }
  try {
    return await queryOnce<R>(target, command)
  } catch (cause) {
    throw unavailable('The pooler does not answer at the moment', cause)
  }
}
