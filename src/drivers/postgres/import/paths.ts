import type { Home } from '../../host/home.ts'
import { isRoot } from '../../host/process.ts'
import { clusterPaths } from '../paths.ts'
import { type User, uidStride } from '../users.ts'

export interface ImportPaths {
  /** The directory of the socket to the source, which the box of the server sees too if it subscribes. */
  sockets: string
  directory: string
  forwarder: string
  /** Written by the jobs. It is on the disk of the cluster, whose size is limited. */
  work: string
  dumpJob: string
  restoreJob: string
}

export function importPaths(home: Home, id: string): ImportPaths {
  const { directory, sourceSockets } = clusterPaths(home, id)
  return {
    sockets: sourceSockets,
    directory: `${directory}/import`,
    forwarder: `source-${id}`,
    work: `${directory}/import/work`,
    dumpJob: `dump-${id}`,
    restoreJob: `load-${id}`,
  }
}

/** Part of the name of the socket to the source. */
export const sourcePort = 5432

/**
 * The jobs and the forwarder have a user of their own, the last free one of a home: `keeper` could connect as superuser,
 * and the firewall lets no user of a cluster open connections. The jobs are in boxes and see nothing of the forwarder.
 * The group is that of the server, by which they can enter the directories of sockets.
 */
export function importUser(home: Home, server: User | undefined): User | undefined {
  return server && isRoot() ? { uid: home.uidStart + 3 * uidStride + 2, gid: server.gid } : undefined
}
