import type { Home } from '../host/home.ts'

export interface ClusterPaths {
  /** Owned by the platform; the user of the cluster can only traverse it. */
  directory: string
  data: string
  tls: string
  pooler: string
  settings: string
  access: string
  /** The directory of the Unix socket. Whoever can enter it can connect as any user. */
  sockets: string
  /** Names of supervised services and jobs. */
  service: string
  poolerService: string
  receiverService: string
  backupJob: string
  scrubJob: string
  copyJob: string
  drillPagesJob: string
  drillContentsJob: string
}

/** Derives every name from the id, so that a removal finds what an interrupted creation left behind. */
export function clusterPaths(home: Home, id: string): ClusterPaths {
  if (!/^[a-z0-9]{16}$/.test(id)) throw new Error(`not the id of a cluster: ${JSON.stringify(id)}`)
  const directory = `${home.path}/clusters/${id}`
  return {
    directory,
    data: `${directory}/data`,
    tls: `${directory}/tls`,
    pooler: `${directory}/pooler`,
    settings: `${directory}/postgresql.conf`,
    access: `${directory}/pg_hba.conf`,
    sockets: `${home.run}/${id}`,
    service: `pg-${id}`,
    poolerService: `pooler-${id}`,
    receiverService: `wal-${id}`,
    backupJob: `backup-${id}`,
    scrubJob: `scrub-${id}`,
    copyJob: `copy-${id}`,
    drillPagesJob: `drill-pages-${id}`,
    drillContentsJob: `drill-${id}`,
  }
}
