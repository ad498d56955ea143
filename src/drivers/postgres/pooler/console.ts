// PgBouncer tells about itself when asked with its own password, which the platform made for it.
import { readFileSync } from 'node:fs'
import { unavailable } from '../../../model/errors.ts'
import { localHost } from '../../network/port.ts'
import type { ClusterPaths } from '../paths.ts'
import { askOnce, type Row } from '../sql/connection.ts'
import { poolerUser } from '../sql/rights.ts'

export interface PoolerAddress {
  listen: string
  port: number
}

export function userFile(paths: ClusterPaths): string {
  return `${paths.pooler}/userlist.txt`
}

export async function askConsole<R extends Row>(
  paths: ClusterPaths,
  { listen, port }: PoolerAddress,
  text: string,
): Promise<R[]> {
  const password = /" "(\w+)"/.exec(readFileSync(userFile(paths), 'utf8'))![1]!
  const target = { host: localHost(listen), port, user: poolerUser, password, database: 'pgbouncer' }
  try {
    return await askOnce<R>(target, text)
  } catch (cause) {
    throw unavailable('The pooler does not answer at the moment', cause)
  }
}
