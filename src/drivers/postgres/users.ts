// The Unix users of one cluster. Its server runs tenants' SQL, so what works for it from outside has other users: the pooler,
// which knows a password of the platform, and the keeper, which writes the backups and the archive.
import { userInfo } from 'node:os'
import { canConfine } from '../confine/probe.ts'
import type { Ownership } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { isRoot } from '../host/process.ts'

/** A home has this many uids for servers, then as many for poolers, then as many for keepers. */
export const uidStride = 21_844

export interface User {
  uid: number
  gid: number
}

export interface ClusterUsers {
  server?: User | undefined
  pooler?: User | undefined
  /** Undefined where the platform itself does this work. */
  keeper?: User | undefined
  /** The names of users in `pg_ident.conf`: those who may connect as the superuser. */
  trusted: string[]
  /** The names that the server knows them by. */
  names: Record<string, number>
}

/** All users are in the group of the server, by which they can enter the directory of its socket. */
export async function clusterUsers(uid: number | undefined): Promise<ClusterUsers> {
  const isConfined = await canConfine()
  if (uid === undefined || !isRoot()) {
    const own = isConfined ? 'platform' : userInfo().username
    return { trusted: [own], names: { [own]: process.getuid!() } }
  }
  const server = { uid, gid: uid }
  // The users of a home have no names on the host, so `peer` cannot identify them there.
  if (!isConfined) return { server, pooler: server, trusted: ['root'], names: {} }
  const keeper = { uid: uid + 2 * uidStride, gid: uid }
  return {
    server,
    pooler: { uid: uid + uidStride, gid: uid },
    keeper,
    trusted: ['root', 'keeper'],
    names: { root: 0, server: uid, keeper: keeper.uid },
  }
}

/** For directories that the group of the server may enter, in which its pooler is too. */
export function sharedWithServer({ server }: ClusterUsers): Ownership {
  return server ? { mode: 0o750, uid: 0, gid: server.gid } : { mode: 0o700 }
}

/** The user of jobs that read files of several clusters, for which they keep a capability; undefined without root. */
export function readerUser(home: Home): User | undefined {
  const uid = home.uidStart + 3 * uidStride + 1
  return isRoot() ? { uid, gid: uid } : undefined
}
